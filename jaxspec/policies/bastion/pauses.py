"""Decide whether drafting pays, and how long to decode autoregressively if it does not.

One round shows little: at a mean of three committed tokens, many rounds commit one. The decision
therefore uses a cumulative sum (Page 1954) of the tokens per sequence that drafting rounds gain
over autoregressive decoding in the same time, counted for more with small trees. When the sum
falls below 0, a pause begins; after it, drafting is on trial.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.registry import tagged

# First value of the sum, its upper bound, and its value after a pause. The gain of a round of a large
# tree varies by about two tokens. At an average gain of 0.3, a sum that starts at 8 with a bound of
# 12 loses a third of the rounds to pauses by chance; with these values it loses one in 100.
FIRST, MOST, TRIAL = 12.0, 24.0, 1.5
# Trees of fewer rows commit fewer tokens, so their gain varies less (of 4 rows by 0.6 to 1 tokens)
# and counts for more.
FULL_ROWS = 12
# Rounds of a pause; doubled each time that the trial after it fails too.
SHORTEST_PAUSE, LONGEST_PAUSE = 8, 256


@tagged("bastion-pauses")
class PauseState(flax.struct.PyTreeNode):
    """How well drafting has paid recently, for a batch of sequences that draft together.

    Attributes:
      balance: float32 [], the cumulative sum.
      left: int32 [], rounds of autoregressive decoding left in this pause.
      following: int32 [], length of the next pause.
      skip: int32 [], decodes that will begin without a trial.
    """

    balance: jax.Array
    left: jax.Array
    following: jax.Array
    skip: jax.Array


def init_pauses() -> PauseState:
    """Make the state before the first round, which assumes that drafting pays."""
    zero = np.int32(0)
    return PauseState(np.float32(FIRST), zero, np.int32(SHORTEST_PAUSE), zero)


def resume_pauses(state: PauseState) -> PauseState:
    """Update the state at the start of a decode.

    A pause ends, because the drafter may suit the new prompts; after the longest pause, only every
    other decode ends it. For the same reason, what earlier prompts gained counts up to the first
    value only.
    """
    trial = (state.left > 0) & (state.skip == 0)
    return state.replace(
        balance=jnp.minimum(state.balance, FIRST),
        left=jnp.where(trial, 0, state.left),
        skip=jnp.maximum(state.skip - 1, 0),
    )


def count_pause(state: PauseState) -> PauseState:
    """Update the state after a round of autoregressive decoding."""
    return state.replace(left=jnp.maximum(state.left - 1, 0))


def record_gain(state: PauseState, gained: jax.Array, rows: int) -> PauseState:
    """Update the state after a drafting round.

    Args:
      gained: float32 [], tokens per sequence.
      rows: of the largest tree.
    """
    balance = jnp.minimum(state.balance + gained * max(1.0, FULL_ROWS / rows), MOST)
    pays = balance >= 0
    # Pauses become short again only when the sum is back at its first value, which takes more than
    # one lucky round of a trial.
    longer = jnp.where(balance >= FIRST, SHORTEST_PAUSE, state.following)
    return PauseState(
        balance=jnp.where(pays, balance, TRIAL),
        left=jnp.where(pays, 0, state.following),
        following=jnp.where(pays, longer, jnp.minimum(2 * state.following, LONGEST_PAUSE)),
        skip=jnp.where(pays, 0, (state.following >= LONGEST_PAUSE).astype(jnp.int32)),
    )
