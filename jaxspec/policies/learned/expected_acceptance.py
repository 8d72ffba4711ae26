"""Rows by regression: predict what every width would commit from the tree's scores, and take the
best ratio to its time.

The supervised control of the learned size policies: a recorded round says for every number of rows
what would have been committed, so that nothing needs to be explored. Fitted by `python -m
training.policies.expected`.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.costs.latency_table import LatencyTable
from jaxspec.policies.learned.heads import Layer
from jaxspec.policies.learned.mlp import check_layers, mlp
from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged


@dataclasses.dataclass(frozen=True)
class RegressionSettings(Settings):
    """Static choices.

    Attributes:
      sizes: rows to choose from, ascending, the root included.
      scores: path probabilities that the regression reads, those of the rows that come first after
        the root.
    """

    sizes: tuple[int, ...] = ()
    scores: int = 0

    def functions(self) -> Functions:
        return _functions(self)


@flax.struct.dataclass
class Regression:
    """What the rounds read.

    Attributes:
      table: measured round times.
      layers: from features to a committed number for each size; one layer is a linear regression.
    """

    table: LatencyTable
    layers: list[Layer]


def make_regression(table: LatencyTable, layers: list[Layer], sizes=None) -> Policy:
    """Rows by the expected committed tokens of `layers` over the times of `table`.

    Args:
      sizes: rows that the layers' outputs are of (None: the table's widths).

    Raises:
      ValueError: the layers do not end in one number a size, or the table does not reach the
        largest.
    """
    sizes, scores = tuple(sizes or table.widths), layers[0]["kernel"].shape[0] - 1
    if sizes[-1] > table.widths[-1]:
        raise ValueError(
            f"sizes reach {sizes[-1]} rows and the times {table.widths[-1]}: measure times of that budget"
        )
    check_layers(layers, scores + 1, len(sizes), "regression")
    return Policy(RegressionSettings(table.widths, sizes, scores), Regression(table, layers))


def features(logprob: jax.Array, context: jax.Array, scores: int) -> jax.Array:
    """float32 [..., scores + 1]: probabilities of the first paths, 0 beyond the last one, and the
    context in thousands.

    Args:
      logprob: [..., N - 1], of the tree's rows after the root, in falling order. context: int32
        [...], cached tokens.
    """
    probability = jnp.exp(logprob[..., :scores].astype(jnp.float32))
    missing = [(0, 0)] * (logprob.ndim - 1) + [(0, scores - probability.shape[-1])]
    return jnp.concatenate(
        [jnp.pad(probability, missing), context[..., None].astype(jnp.float32) / 1000], axis=-1
    )


def committed(layers: list[Layer], x: jax.Array) -> jax.Array:
    """Expected tokens float32 [..., sizes] that rounds with features [..., F] commit at each size;
    at least 1.
    """
    return jnp.maximum(mlp(layers, x, "relu"), 1.0)


@functools.lru_cache
def _functions(settings: RegressionSettings) -> Functions:
    width = np.minimum(np.searchsorted(settings.widths, settings.sizes), len(settings.widths) - 1)

    def rows(controls, state, seen):
        draft, verify = controls.table.at(jnp.max(jnp.where(seen.live, seen.context, 0)))
        tokens = committed(
            controls.layers, features(seen.tree.logprob[:, 1:], seen.context, settings.scores)
        )
        total = jnp.sum(jnp.where(seen.live[:, None], tokens, 0.0), axis=0)
        return jnp.asarray(settings.sizes, jnp.int32)[jnp.argmax(total / (draft + verify[width]))]

    return Functions(lambda shape: (), Acts(rows=rows), unchanged)
