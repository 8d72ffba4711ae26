"""Rows by regression: predict what every width would commit from the tree's scores, and take the best ratio to its time.

The supervised control of the learned size policies: a recorded round says for every number of rows what would have been
committed, so that nothing needs to be explored. Fitted by `python -m training.policies.expected`.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.heads import Layer
from jaxspec.policies.latency import LatencyTable
from jaxspec.policies.mlp import check_layers, mlp
from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged
from jaxspec.state import Tree


@dataclasses.dataclass(frozen=True)
class RegressionSettings(Settings):
    """Static choices. Attributes: rows: N, scores that the regression reads, those of the tree's first rows but the root."""

    rows: int = 0

    def functions(self) -> Functions:
        return _functions(self)


@flax.struct.dataclass
class Regression:
    """What the rounds read.

    Attributes:
      table: measured round times.
      layers: from features to a committed number for each of the table's widths; one layer is a linear regression.
    """

    table: LatencyTable
    layers: list[Layer]


def make_regression(table: LatencyTable, layers: list[Layer]) -> Policy:
    """Rows by the expected committed tokens of `layers` over the times of `table`.

    Raises:
      ValueError: the layers do not end in one number a width.
    """
    rows = layers[0]["kernel"].shape[0] - 1
    check_layers(layers, rows + 1, len(table.widths), "regression")
    return Policy(RegressionSettings(table.widths, rows), Regression(table, layers))


def features(tree: Tree, context: jax.Array, rows: int) -> jax.Array:
    """float32 [B, rows + 1]: path probabilities of the rows after the root, in falling order, and the context in thousands.

    Args:
      context: int32 [B], cached tokens.
    """
    score = jnp.exp(tree.logprob[:, 1 : rows + 1])
    score = jnp.pad(score, ((0, 0), (0, rows - score.shape[1])))
    return jnp.concatenate([score, context[:, None].astype(jnp.float32) / 1000], axis=1)


def committed(layers: list[Layer], x: jax.Array) -> jax.Array:
    """Expected tokens float32 [..., W] that rounds with features [..., F] commit at each width; at least 1."""
    return jnp.maximum(mlp(layers, x, "relu"), 1.0)


@functools.lru_cache
def _functions(settings: RegressionSettings) -> Functions:
    def rows(controls, state, seen):
        draft, verify = controls.table.at(jnp.max(jnp.where(seen.live, seen.context, 0)))
        tokens = committed(controls.layers, features(seen.tree, seen.context, settings.rows))
        total = jnp.sum(jnp.where(seen.live[:, None], tokens, 0.0), axis=0)
        return jnp.asarray(settings.widths, jnp.int32)[jnp.argmax(total / (draft + verify))]

    return Functions(lambda shape: (), Acts(rows=rows), unchanged)
