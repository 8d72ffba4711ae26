"""Choose rows by regression: predict the tokens that each number of rows commits, per second.

The regression reads the tree's scores, and the policy verifies the number of rows with the most
predicted tokens per second. It is the supervised baseline of learned size policies: a recorded
round shows what every number of rows would have committed, so no exploration is needed.
`python -m jaxspec.training.policies.expected` fits it.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Sequence

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from jaxspec.costs.row_costs import RowCosts, width_indices
from jaxspec.policies.learned.networks import Layer, check_network, mlp
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import tagged


@tagged("regression")
@dataclasses.dataclass(frozen=True)
class RegressionConfig(PolicyConfig):
    """Static choices.

    Attributes:
      sizes: rows to choose from, ascending, the root included.
      scores: number of path probabilities that the regression reads, those of the first rows after
        the root.
    """

    sizes: tuple[int, ...] = ()
    scores: int = 0

    def functions(self) -> Functions:
        return _functions(self)


@tagged("regression-weights")
class Regression(flax.struct.PyTreeNode):
    """Controls of the policy.

    Attributes:
      costs: measured round costs.
      layers: from features to committed tokens at each size; one layer is a linear regression.
    """

    costs: RowCosts
    layers: list[Layer]


def make_regression(
    costs: RoundCosts,
    layers: list[Layer],
    sizes: Sequence[int] | None = None,
    *,
    steps: int = 0,
    score_scale: float = 1.0,
) -> Policy:
    """Make a policy that verifies the number of rows with the most expected tokens per second.

    Args:
      costs: round costs.
      layers: from features to committed tokens at each size.
      sizes: numbers of rows of the layers' outputs; None takes the table's compiled widths.
      steps: draft steps of the rounds, for a table that distinguishes them.
      score_scale: of the scores that the layers were fitted to, see `PolicyConfig`.

    Raises:
      ValueError: the layers do not end in one number per size, or the table does not reach the
        largest size.
    """
    table = costs.by_rows(steps)
    sizes, scores = tuple(sizes or costs.compiled), layers[0]["kernel"].shape[0] - 1
    if sizes[-1] > table.widths[-1]:
        raise ValueError(
            f"sizes reach {sizes[-1]} rows and round costs {table.widths[-1]}: measure costs with "
            "that budget"
        )
    check_network(layers, scores + 1, len(sizes), "regression")
    config = RegressionConfig(costs.compiled, sizes, scores, score_scale=score_scale)
    return Policy(config, Regression(table, layers))


def regression_features(logprob: jax.Array, context: jax.Array, scores: int) -> jax.Array:
    """Make features float32 [..., scores + 1].

    They are the probabilities of the first paths (0 after the last one) and the context in
    thousands of tokens.

    Args:
      logprob: [..., N - 1], of the tree's rows after the root, in their order.
      context: int32 [...], cached tokens.
    """
    probability = jnp.exp(logprob[..., :scores].astype(jnp.float32))
    missing = [(0, 0)] * (logprob.ndim - 1) + [(0, scores - probability.shape[-1])]
    return jnp.concatenate(
        [jnp.pad(probability, missing), context[..., None].astype(jnp.float32) / 1000], axis=-1
    )


def predict_committed(layers: list[Layer], x: jax.Array) -> jax.Array:
    """Predict the committed tokens at each size: float32 [..., sizes] from features [..., F].

    Predictions are at least 1.
    """
    return jnp.maximum(mlp(layers, x, "relu"), 1.0)


@functools.lru_cache
def _functions(config: RegressionConfig) -> Functions:
    def rows(controls, state, seen):
        widths = controls.costs.widths
        width = width_indices(widths[-1], widths)[np.array(config.sizes) - 1]
        draft, verify = controls.costs.interpolate(jnp.max(jnp.where(seen.live, seen.context, 0)))
        tokens = predict_committed(
            controls.layers,
            regression_features(seen.tree.logprob[:, 1:], seen.context, config.scores),
        )
        total = jnp.sum(jnp.where(seen.live[:, None], tokens, 0.0), axis=0)
        return jnp.asarray(config.sizes, jnp.int32)[jnp.argmax(total / (draft + verify[width]))]

    return Functions(lambda shape: (), Acts(rows=rows), keep_state)
