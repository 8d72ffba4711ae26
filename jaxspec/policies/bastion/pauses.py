"""Whether drafting pays, and how long to decode autoregressively when it does not.

One round tells little: at a mean of three committed tokens, many rounds commit one. The decision
is therefore a cumulative sum (Page 1954) of the tokens per sequence that drafting rounds gained
over autoregressive decoding in the same time. Below 0 a pause begins; after it, drafting is on
trial.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.registry import tagged

# First value of the sum, its upper bound, and its value after a pause. A round's gain varies by about
# two tokens. At an average gain of 0.3, sums that start at 8 and are bounded by 12 lose a third of
# the rounds to pauses by chance; these lose one in 100.
FIRST, MOST, TRIAL = 12.0, 24.0, 1.5
# Rounds of a pause; doubled each time that the trial after it does not pay either.
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 256


@tagged("bastion-pauses")
class PauseState(flax.struct.PyTreeNode):
    """Whether drafting has paid lately, for a batch whose sequences draft together.

    Attributes:
      balance: float32 [], the cumulative sum.
      left: int32 [], rounds of autoregressive decoding left in this pause.
      following: int32 [], length of the next pause.
      skip: int32 [], decodes that are to begin without a trial.
    """

    balance: jax.Array
    left: jax.Array
    following: jax.Array
    skip: jax.Array


def init_pauses() -> PauseState:
    """The state before the first round, in which drafting is taken to pay."""
    zero = jnp.int32(0)
    return PauseState(jnp.float32(FIRST), zero, zero + SHORTEST_PAUSE, zero)


def resume_pauses(state: PauseState) -> PauseState:
    """The state at the start of a decode. A pause ends, because the drafter may suit the new
    prompts; after the longest pause, only every other decode ends it.
    """
    trial = (state.left > 0) & (state.skip == 0)
    return state.replace(left=jnp.where(trial, 0, state.left), skip=jnp.maximum(state.skip - 1, 0))


def count_pause(state: PauseState) -> PauseState:
    """The state after a round of autoregressive decoding."""
    return state.replace(left=jnp.maximum(state.left - 1, 0))


def record_gain(state: PauseState, gained: jax.Array) -> PauseState:
    """The state after a drafting round that gained `gained` tokens per sequence, float32 []."""
    balance = jnp.minimum(state.balance + gained, MOST)
    pays = balance >= 0
    # Pauses get short again when the sum is back at its first value: one lucky round of a trial is
    # not enough.
    longer = jnp.where(balance >= FIRST, SHORTEST_PAUSE, state.following)
    return PauseState(
        balance=jnp.where(pays, balance, TRIAL),
        left=jnp.where(pays, 0, state.following),
        following=jnp.where(pays, longer, jnp.minimum(2 * state.following, LONGEST_PAUSE)),
        skip=jnp.where(pays, 0, (state.following >= LONGEST_PAUSE).astype(jnp.int32)),
    )
