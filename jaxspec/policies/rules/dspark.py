"""DSpark's two rules for how much of a chain to verify: its schedule, and a static threshold.

The schedule (DeepSeek 2026, Algorithm 1) divides the rows of a verification among sequences. The
drafted tokens of all of them are admitted in the order of their probability of being accepted,
while the expected tokens per second rise.

The threshold (DeepSpec's released code) verifies a chain up to the first token that will hardly be
accepted. The number is compared with the conditional probability of every token, not with that of
the path. The builder `chain+confidence` takes these probabilities from the drafter's confidence
head, `chain` from its distributions.
"""

from __future__ import annotations

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from jaxspec.costs.row_costs import RowCosts, width_indices
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import register, tagged
from jaxspec.policies.stopping import make_threshold


def survival(logprob: jax.Array) -> jax.Array:
    """Compute the probability float32 [B, N - 1] that each drafted token is accepted.

    Args:
      logprob: float32 [B, N], cumulative log-probabilities of a chain's rows; the root's is 0 and
        padding has -inf.
    """
    return jnp.exp(logprob[:, 1:])


def conditional(logprob: jax.Array) -> jax.Array:
    """Compute the probability float32 [B, N - 1] that a token is accepted if those before it are.

    Args:
      logprob: see `survival`; tokens of padding get 0.
    """
    before = jnp.where(logprob[:, :-1] > -jnp.inf, logprob[:, :-1], 0.0)
    return jnp.exp(logprob[:, 1:] - before)


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
        return _schedule_functions(self)


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
    return Policy(ScheduleConfig(costs.compiled, early_stop=early_stop), costs.by_rows())


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
def _schedule_functions(config: ScheduleConfig) -> Functions:
    def rows(controls, state, seen):
        batch, most = seen.tree.token.shape
        rate = compute_rates(controls, seen.context, seen.live, batch, most)
        chance = survival(seen.tree.logprob)
        return 1 + divide_rows(chance, seen.live, rate, config.early_stop)[0]

    return Functions(lambda shape: (), Acts(rows=rows), keep_state, chains=True)


@tagged("dspark-threshold")
@dataclasses.dataclass(frozen=True)
class ThresholdConfig(PolicyConfig):
    """The rule has no static choices of its own."""

    def functions(self) -> Functions:
        return _threshold_functions()


def make_dspark_threshold(threshold: float | str = 0.5, widths: tuple[int, ...] = ()) -> Policy:
    """Make the policy.

    Args:
      threshold: smallest probability of a token that is verified. 0 verifies whole chains.
      widths: see `PolicyConfig`.

    Raises:
      ValueError: the threshold is not in 0 to 1.
    """
    try:
        value = float(threshold)
    except ValueError:
        value = float("nan")
    if not 0 <= value <= 1:
        raise ValueError(f"threshold is {threshold}: give a probability from 0 to 1")
    return Policy(ThresholdConfig(tuple(widths)), make_threshold(value))


def count_confident(probability: jax.Array, threshold: jax.Array) -> jax.Array:
    """Count the tokens before the first whose probability is below the threshold: int32 [B].

    Args:
      probability: float32 [B, D], see `conditional`.
      threshold: float32 [].
    """
    return jnp.sum(jnp.cumprod(probability >= threshold, axis=1), axis=1, dtype=jnp.int32)


@functools.lru_cache
def _threshold_functions() -> Functions:
    def rows(controls, state, seen):
        return 1 + count_confident(conditional(seen.tree.logprob), controls.threshold)

    return Functions(lambda shape: (), Acts(rows=rows), keep_state, chains=True)


register("dspark", make_dspark, by_costs=True)
register("dspark-global", functools.partial(make_dspark, early_stop=False), by_costs=True)
register("dspark-threshold", make_dspark_threshold, argument="THRESHOLD")
