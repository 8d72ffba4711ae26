"""Whether drafting pays, and how long to decode plainly where it does not.

One round says little: at a mean of three committed tokens, many commit one. Whether drafting pays
is therefore a cumulative sum (Page 1954) of the tokens of a sequence that drafted rounds gained
over plain decoding in their time. Below 0 a pause begins, and what follows it is a trial.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

# What the sum begins with, its upper bound, and what it begins with after a pause. A round's gain
# varies by two tokens or so: where it is 0.3 on average, sums of up to 12 that begin with 8 leave a
# third of the rounds plain by chance, these one in 100.
FIRST, MOST, TRIAL = 12.0, 24.0, 1.5
# Rounds of a pause; doubled every time that the trial after one does not pay either.
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 256


@flax.struct.dataclass
class PauseState:
    """What is known of drafting's worth, of a batch whose sequences draft together.

    Attributes:
      balance: float32 [], the cumulative sum.
      left: int32 [], rounds of plain decoding that are left. following: int32 [], the next pause's
        length.
      skip: int32 [], calls that are to begin without a trial.
    """

    balance: jax.Array
    left: jax.Array
    following: jax.Array
    skip: jax.Array


def init_pauses() -> PauseState:
    """Drafting is taken to pay."""
    zero = jnp.int32(0)
    return PauseState(jnp.float32(FIRST), zero, zero + SHORTEST_PAUSE, zero)


def resumed(state: PauseState) -> PauseState:
    """The state as a call begins, whose texts the drafter may suit: a pause ends, after the longest
    in every other call.
    """
    trial = (state.left > 0) & (state.skip == 0)
    return state.replace(left=jnp.where(trial, 0, state.left), skip=jnp.maximum(state.skip - 1, 0))


def waited(state: PauseState) -> PauseState:
    """The state after a round of plain decoding."""
    return state.replace(left=jnp.maximum(state.left - 1, 0))


def paid(state: PauseState, gained: jax.Array) -> PauseState:
    """The state after a drafted round that gained so many tokens a sequence, float32 []."""
    balance = jnp.minimum(state.balance + gained, MOST)
    pays = balance >= 0
    # The doubling ends when the sum is back at what it began with at first: a lucky round of a
    # trial is not enough.
    longer = jnp.where(balance >= FIRST, SHORTEST_PAUSE, state.following)
    return PauseState(
        balance=jnp.where(pays, balance, TRIAL),
        left=jnp.where(pays, 0, state.following),
        following=jnp.where(pays, longer, jnp.minimum(2 * state.following, LONGEST_PAUSE)),
        skip=jnp.where(pays, 0, (state.following >= LONGEST_PAUSE).astype(jnp.int32)),
    )
