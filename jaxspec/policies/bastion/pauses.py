"""Decide whether drafting pays, and how long to decode autoregressively if it does not.

What a drafted round gains over autoregressive decoding in the same time, in tokens per sequence,
varies much: at a mean of three committed tokens, many rounds commit one. Texts differ less, and one
text hardly changes. So the gain is estimated as a sum of two parts, the usual gain of this drafter
and the difference of this text, by a Kalman filter with their covariance: a new text begins with
the usual gain, and a few poor rounds say little. Rounds draft while the estimate is not negative.
If it is, they draft while it would not be with a standard deviation of its own added, as for
bandits (Auer et al. 2002), and while the text can afford it: what it may lose to autoregressive
decoding is limited. In pauses the difference is forgotten and the variance grows, so drafting is
tried again, sooner where it nearly pays.

Variances of the estimate are in running variances of a round's gain: that of a large tree varies
more than that of a small one.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.registry import tagged

# Autoregressive rounds after which the estimate allows another trial, however poor the drafter was.
LONGEST_PAUSE = 512
# Rounds that the first guess of the variance counts for, and rounds that later ones remember.
GUESS_ROUNDS, MEMORY = 8.0, 64.0
# Least deviation, for gains that hardly vary.
LEAST_DEVIATION = 0.2


class PauseRule(NamedTuple):
    """When to draft; `python -m benchmarks pauses` counts what other values cost on recorded
    rounds.

    Attributes:
      optimism: standard deviations of the estimate that are added to it.
      spread: variance of the gains of texts around the usual gain.
      memory: rounds in which the difference of a text falls to 1/e of itself.
      doubt: variance of the usual gain before the first round.
      drift: variance that every round adds to the usual gain.
      stake: tokens per sequence that a text may lose from its start.
      share: tokens per sequence that it may lose besides in every round.
    """

    optimism: float = 1.0
    spread: float = 1 / 4
    memory: float = 64.0
    doubt: float = 1.0
    drift: float = 1 / 1024
    stake: float = 1.0
    share: float = 0.01


RULE = PauseRule()


@tagged("bastion-pauses")
class PauseState(flax.struct.PyTreeNode):
    """What drafting gains, for a batch of sequences that draft together.

    Attributes:
      usual: float32 [], estimated usual gain of a drafted round, in tokens per sequence.
      own: float32 [], estimated difference of this text from it.
      usual_variance, own_variance, covariance: float32 [], of both estimates.
      allowance: float32 [], tokens per sequence that this text may still lose, what it gained
        included.
      mean: float32 [], running mean of the gains, in tokens per sequence.
      variance: float32 [], their running variance.
      seen: float32 [], rounds that both remember.
    """

    usual: jax.Array
    own: jax.Array
    usual_variance: jax.Array
    own_variance: jax.Array
    covariance: jax.Array
    allowance: jax.Array
    mean: jax.Array
    variance: jax.Array
    seen: jax.Array


def init_pauses(longest: int, rule: PauseRule = RULE) -> PauseState:
    """Make the state before the first text.

    Args:
      longest: most tokens that a round commits per sequence.
    """
    zero = np.float32(0)
    # A sixth of the range; what long paths add to it is seldom reached.
    guess = min((longest - 1) / 6, 1.5)
    return PauseState(
        usual=zero,
        own=zero,
        usual_variance=jnp.asarray(rule.doubt, jnp.float32),
        own_variance=zero,
        covariance=zero,
        allowance=zero,
        mean=zero,
        variance=np.float32(guess**2),
        seen=np.float32(GUESS_ROUNDS),
    )


def resume_pauses(state: PauseState, rule: PauseRule = RULE) -> PauseState:
    """Update the state at the start of a decode: nothing is known of the new text."""
    zero = jnp.zeros_like(state.own)
    return state.replace(
        own=zero,
        own_variance=zero + rule.spread,
        covariance=zero,
        allowance=zero + rule.stake,
    )


def drafting_pays(state: PauseState, rule: PauseRule = RULE) -> jax.Array:
    """Decide whether the next round drafts: bool []."""
    gain = state.usual + state.own
    deviation = _deviation(state) * jnp.sqrt(_estimate_variance(state))
    return (gain >= 0) | ((gain + rule.optimism * deviation >= 0) & (state.allowance > 0))


def count_pause(state: PauseState, rule: PauseRule = RULE) -> PauseState:
    """Update the state after a round of autoregressive decoding."""
    keep = 1 - 1 / rule.memory
    return state.replace(
        own=keep * state.own,
        usual_variance=state.usual_variance + rule.drift,
        # Without observations it tends to the spread of texts.
        own_variance=keep**2 * state.own_variance + (1 - keep**2) * rule.spread,
        covariance=keep * state.covariance,
        allowance=state.allowance + rule.share,
    )


def record_gain(state: PauseState, gained: jax.Array, rule: PauseRule = RULE) -> PauseState:
    """Update the state after a drafting round that gained `gained` float32 [] tokens per sequence."""
    state = _record_moments(count_pause(state, rule), gained)
    usual_part = state.usual_variance + state.covariance
    own_part = state.own_variance + state.covariance
    whole = usual_part + own_part + 1  # in these units, a round's own variance is 1
    error = (gained - state.usual - state.own) / whole
    # However poor the drafter was, it is tried again after the longest pause.
    doubt = jnp.sqrt(rule.spread + rule.drift * LONGEST_PAUSE)
    least = -rule.optimism * _deviation(state) * doubt
    return state.replace(
        usual=jnp.maximum(state.usual + usual_part * error, least),
        own=state.own + own_part * error,
        usual_variance=state.usual_variance - usual_part**2 / whole,
        own_variance=state.own_variance - own_part**2 / whole,
        covariance=state.covariance - usual_part * own_part / whole,
        allowance=state.allowance + gained,
    )


def _record_moments(state: PauseState, gained: jax.Array) -> PauseState:
    """Update the running mean and variance of gains."""
    seen = jnp.minimum(state.seen + 1, MEMORY)
    mean = state.mean + (gained - state.mean) / seen
    off = (gained - state.mean) * (gained - mean)
    variance = state.variance + (off - state.variance) / seen
    return state.replace(mean=mean, variance=variance, seen=seen)


def _deviation(state: PauseState) -> jax.Array:
    """Compute the standard deviation of a round's gain, in tokens per sequence."""
    return jnp.maximum(jnp.sqrt(state.variance), LEAST_DEVIATION)


def _estimate_variance(state: PauseState) -> jax.Array:
    """Compute the variance of the estimated gain, in variances of a round's gain."""
    return state.usual_variance + state.own_variance + 2 * state.covariance
