"""Decide whether drafting pays, and how long to decode autoregressively if it does not.

What a drafted round gains over autoregressive decoding in the same time, in tokens per sequence,
varies much: at a mean of three committed tokens, many rounds commit one. And it changes with the
text. So the gain is estimated together with the estimate's variance, by a Kalman filter of a level
that drifts: every round adds to the variance, and one that drafted also tells a gain. Rounds draft
while the estimate is not negative. If it is, they draft while it would not be with some of its
standard deviation added, as for bandits (Auer et al. 2002), and while the text can afford it: what
it may lose to autoregressive decoding is limited. So drafting stops after the first rounds if they
are poor, and is tried again when enough may have changed, sooner where it nearly pays.

The estimate is in running standard deviations of a round's gain: that of a large tree varies more
than that of a small one.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.registry import tagged

# Most autoregressive rounds after which the estimate allows another trial.
LONGEST_PAUSE = 256
# Rounds that the first guess of the deviation counts for, and rounds that later ones remember.
GUESS_ROUNDS, MEMORY = 8.0, 64.0
# Least deviation, for gains that hardly vary.
LEAST_DEVIATION = 0.2


class PauseRule(NamedTuple):
    """When to draft; `jaxspec bench pauses` counts what other values cost on recorded rounds.

    Attributes:
      optimism: standard deviations of the estimate that are added to it.
      drift: variance that every round adds to the estimate.
      novelty: variance that a new text adds to the estimate.
      stake: tokens per sequence that a text may lose from its start.
      share: tokens per sequence that it may lose besides in every round.
    """

    optimism: float = 0.5
    drift: float = 1 / 64
    novelty: float = 1.0
    stake: float = 0.5
    share: float = 0.01


RULE = PauseRule()


@tagged("bastion-pauses")
class PauseState(flax.struct.PyTreeNode):
    """What drafting gains, for a batch of sequences that draft together.

    Attributes:
      gain: float32 [], the estimated gain of the next round, in standard deviations of a gain.
      doubt: float32 [], the variance of the estimate.
      allowance: float32 [], tokens per sequence that this text may still lose, what it gained
        included.
      mean: float32 [], running mean of the gains, in tokens per sequence.
      variance: float32 [], their running variance.
      seen: float32 [], rounds that both remember.
    """

    gain: jax.Array
    doubt: jax.Array
    allowance: jax.Array
    mean: jax.Array
    variance: jax.Array
    seen: jax.Array


def init_pauses(longest: int) -> PauseState:
    """Make the state before the first text.

    Args:
      longest: most tokens that a round commits per sequence.
    """
    zero = np.float32(0)
    # A quarter of the range; what long paths add to it is seldom reached.
    guess = min((longest - 1) / 4, 2.0)
    return PauseState(
        gain=zero,
        doubt=zero,
        allowance=zero,
        mean=zero,
        variance=np.float32(guess**2),
        seen=np.float32(GUESS_ROUNDS),
    )


def resume_pauses(state: PauseState, rule: PauseRule = RULE) -> PauseState:
    """Update the state at the start of a decode: the drafter may suit the new text better or worse."""
    return state.replace(
        doubt=state.doubt + rule.novelty,
        allowance=jnp.full_like(state.allowance, rule.stake),
    )


def drafting_pays(state: PauseState, rule: PauseRule = RULE) -> jax.Array:
    """Decide whether the next round drafts: bool []."""
    may_pay = state.gain + rule.optimism * jnp.sqrt(state.doubt) >= 0
    return (state.gain >= 0) | (may_pay & (state.allowance > 0))


def count_pause(state: PauseState, rule: PauseRule = RULE) -> PauseState:
    """Update the state after a round of autoregressive decoding."""
    return state.replace(doubt=state.doubt + rule.drift, allowance=state.allowance + rule.share)


def record_gain(state: PauseState, gained: jax.Array, rule: PauseRule = RULE) -> PauseState:
    """Update the state after a drafting round that gained `gained` float32 [] tokens per sequence."""
    seen = jnp.minimum(state.seen + 1, MEMORY)
    mean = state.mean + (gained - state.mean) / seen
    off = (gained - state.mean) * (gained - mean)
    variance = state.variance + (off - state.variance) / seen
    deviation = jnp.maximum(jnp.sqrt(variance), LEAST_DEVIATION)

    doubt = state.doubt + rule.drift
    weight = doubt / (doubt + 1)  # in these units, a round's own variance is 1
    gain = state.gain + weight * (gained / deviation - state.gain)
    # However poor the drafter was, it is tried again after the longest pause.
    least = -rule.optimism * jnp.sqrt(rule.drift * LONGEST_PAUSE)
    return PauseState(
        gain=jnp.maximum(gain, least),
        doubt=(1 - weight) * doubt,
        allowance=state.allowance + gained + rule.share,
        mean=mean,
        variance=variance,
        seen=seen,
    )
