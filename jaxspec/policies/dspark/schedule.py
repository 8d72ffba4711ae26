"""DSpark's schedule: divide the rows of a verification among sequences by their confidence.

Source: DSpark (DeepSeek 2026), Algorithm 1. The drafted tokens of all sequences are admitted in the
order of their probability of being accepted, while the expected tokens per second rise.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from jaxspec.costs.row_costs import RowCosts, width_indices
from jaxspec.policies.dspark.chain_rows import survival
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import register, tagged


@tagged("dspark-schedule")
@dataclasses.dataclass(frozen=True)
class ScheduleConfig(PolicyConfig):
    """Static choices of the schedule.

    Attributes:
      early_stop: stop at the first token that lowers the expected tokens per second, as in the
        paper; False takes the best number of rows wherever it is.
    """

    early_stop: bool = True

    def functions(self) -> Functions:
        return _functions(self)


def make_dspark(costs: RoundCosts, *, early_stop: bool = True) -> Policy:
    """Make the schedule from round costs.

    The paper stops early because the confidences that it reads depend on sampled tokens, and a rule
    that looks past a token could bias what is sampled. Here a token is accepted if it equals the
    one that the target samples under its noise, so every rule is lossless.

    A verification runs the rows of its longest chain for every sequence, so the time of B rows is
    taken as that of the smallest compiled width that holds B rows divided evenly. For one sequence
    this is exact.

    Args:
      costs: see `jaxspec.tuner.calibrate.by_rows`.
      early_stop: see `ScheduleConfig`.
    """
    return Policy(ScheduleConfig(costs.widths, early_stop=early_stop), costs.by_rows())


def divide_rows(
    probability: jax.Array, live: jax.Array, rate: jax.Array, early_stop: bool
) -> tuple[jax.Array, jax.Array]:
    """Choose how many drafted tokens of every sequence to verify.

    Args:
      probability: float [B, D], probability that a chain reaches and accepts each token,
        non-increasing along the chain.
      live: bool [B], sequences to verify at all.
      rate: float [B * (D + 1)], verifications per second; entry n - 1 is for n rows in all.
      early_stop: see `ScheduleConfig`.

    Returns:
      (drafted tokens int32 [B], expected tokens per second float []).
    """
    batch, depth = probability.shape
    roots = jnp.sum(live, dtype=jnp.int32)
    # Columns first, so that among equal probabilities the earlier token comes first.
    flat = jnp.where(live[:, None], probability, 0).T.reshape(-1)
    order = jnp.argsort(-flat, stable=True)
    gained = flat[order]
    expected = jnp.concatenate([jnp.zeros(1, flat.dtype), jnp.cumsum(gained)]) + roots
    rows = roots + jnp.arange(batch * depth + 1)
    theta = expected * rate[jnp.clip(rows - 1, 0, len(rate) - 1)]
    possible = jnp.concatenate([jnp.ones(1, bool), gained > 0])
    theta = jnp.where(possible, theta, -jnp.inf)
    if early_stop:
        stops = theta[1:] <= theta[:-1]
        admitted = jnp.where(stops.any(), jnp.argmax(stops), batch * depth)
    else:
        admitted = jnp.argmax(theta)
    place = jnp.zeros(batch * depth, jnp.int32).at[order].set(jnp.arange(batch * depth))
    lengths = jnp.sum((place < admitted).reshape(depth, batch), axis=0, dtype=jnp.int32)
    return lengths, theta[admitted]


def compute_rates(
    costs: RowCosts, context: jax.Array, live: jax.Array, batch: int, rows: int
) -> jax.Array:
    """Compute verifications per second float32 [batch * rows] by rows of all sequences.

    Args:
      costs: of rounds.
      context: int32 [B], cached tokens.
      live: bool [B].
      batch, rows: B, and N rows per sequence at most.
    """
    draft, verify = costs.interpolate(jnp.max(jnp.where(live, context, 0)))
    seconds = (draft + verify)[width_indices(rows, costs.widths)]
    each = -(-np.arange(1, batch * rows + 1) // jnp.maximum(jnp.sum(live), 1))
    return 1 / seconds[jnp.clip(each - 1, 0, rows - 1)]


@functools.lru_cache
def _functions(config: ScheduleConfig) -> Functions:
    def rows(controls, state, seen):
        batch, most = seen.tree.token.shape
        rate = compute_rates(controls, seen.context, seen.live, batch, most)
        chance = survival(seen.tree.logprob)
        return 1 + divide_rows(chance, seen.live, rate, config.early_stop)[0]

    return Functions(lambda shape: (), Acts(rows=rows), keep_state, chains=True)


register("dspark", make_dspark, by_costs=True)
register("dspark-global", functools.partial(make_dspark, early_stop=False), by_costs=True)
