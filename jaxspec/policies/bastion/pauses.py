"""Decide whether drafting pays, and how long to decode autoregressively if it does not.

One round shows little: at a mean of three committed tokens, many rounds commit one. The decision
therefore uses a cumulative sum (Page 1954) of what drafting rounds gain over autoregressive
decoding in the same time, in tokens per sequence, divided by their running standard deviation: the
gain of a large tree varies more than that of a small one. When the sum falls below 0, a pause
begins; after it, drafting is on trial.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.registry import tagged

# Rounds of a pause; doubled each time that the trial after it fails too.
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 256
# Rounds that the first guess of the deviation counts for, and rounds that later ones remember.
GUESS_ROUNDS, MEMORY = 8.0, 64.0
# Least deviation, for gains that hardly vary.
LEAST_DEVIATION = 0.2


class PauseRule(NamedTuple):
    """Values of the sum, in standard deviations of a round's gain.

    `jaxspec bench pauses` counts what other values cost on recorded rounds.

    Attributes:
      first: before the first round.
      most: largest value. It bounds what is lost when a text becomes hard to draft.
      trial: after a pause.
    """

    first: float = 3.0
    most: float = 12.0
    trial: float = 0.75


RULE = PauseRule()


@tagged("bastion-pauses")
class PauseState(flax.struct.PyTreeNode):
    """How well drafting has paid recently, for a batch of sequences that draft together.

    Attributes:
      balance: float32 [], the cumulative sum.
      left: int32 [], rounds of autoregressive decoding left in this pause.
      following: int32 [], length of the next pause.
      skip: int32 [], decodes that will begin without a trial.
      mean: float32 [], running mean of the gains, in tokens per sequence.
      variance: float32 [], their running variance.
      seen: float32 [], rounds that both remember.
    """

    balance: jax.Array
    left: jax.Array
    following: jax.Array
    skip: jax.Array
    mean: jax.Array
    variance: jax.Array
    seen: jax.Array


def init_pauses(longest: int, rule: PauseRule = RULE) -> PauseState:
    """Make the state before the first round, which assumes that drafting pays.

    Args:
      longest: most tokens that a round commits per sequence.
    """
    zero = np.int32(0)
    # A quarter of the range; what long paths add to it is seldom reached.
    guess = min((longest - 1) / 4, 2.0)
    return PauseState(
        jnp.float32(rule.first),
        zero,
        np.int32(SHORTEST_PAUSE),
        zero,
        mean=np.float32(0),
        variance=np.float32(guess**2),
        seen=np.float32(GUESS_ROUNDS),
    )


def resume_pauses(state: PauseState, rule: PauseRule = RULE) -> PauseState:
    """Update the state at the start of a decode.

    A pause ends, because the drafter may suit the new prompts; after the longest pause, only every
    other decode ends it. For the same reason, what earlier prompts gained counts up to the first
    value only.
    """
    trial = (state.left > 0) & (state.skip == 0)
    return state.replace(
        balance=jnp.minimum(state.balance, rule.first),
        left=jnp.where(trial, 0, state.left),
        skip=jnp.maximum(state.skip - 1, 0),
    )


def drafting_pays(state: PauseState, rule: PauseRule = RULE) -> jax.Array:
    """Decide whether the next round drafts: bool []."""
    return state.left == 0


def count_pause(state: PauseState, rule: PauseRule = RULE) -> PauseState:
    """Update the state after a round of autoregressive decoding."""
    return state.replace(left=jnp.maximum(state.left - 1, 0))


def record_gain(state: PauseState, gained: jax.Array, rule: PauseRule = RULE) -> PauseState:
    """Update the state after a drafting round that gained `gained` float32 [] tokens per sequence."""
    seen = jnp.minimum(state.seen + 1, MEMORY)
    mean = state.mean + (gained - state.mean) / seen
    off = (gained - state.mean) * (gained - mean)
    variance = state.variance + (off - state.variance) / seen
    deviation = jnp.maximum(jnp.sqrt(variance), LEAST_DEVIATION)
    balance = jnp.minimum(state.balance + gained / deviation, rule.most)
    pays = balance >= 0
    # Pauses become short again only when the sum is back at its first value, which takes more than
    # one lucky round of a trial.
    longer = jnp.where(balance >= rule.first, SHORTEST_PAUSE, state.following)
    return PauseState(
        balance=jnp.where(pays, balance, rule.trial),
        left=jnp.where(pays, 0, state.following),
        following=jnp.where(pays, longer, jnp.minimum(2 * state.following, LONGEST_PAUSE)),
        skip=jnp.where(pays, 0, (state.following >= LONGEST_PAUSE).astype(jnp.int32)),
        mean=mean,
        variance=variance,
        seen=seen,
    )
