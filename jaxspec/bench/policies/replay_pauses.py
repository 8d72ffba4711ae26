"""Replay when BASTION's controller pauses drafting, on recorded texts and without a model.

What a draft would have been accepted from any place of a text follows from the rounds of one decode:
tokens that a round accepted are accepted from every place before them, and the token that ended a
round is not. The bonus token after a wholly accepted draft counts as accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.bastion.pauses import (
    Bounds,
    PauseState,
    count_pause,
    init_pauses,
    record_gain,
    resume_pauses,
)


class RecordedText(NamedTuple):
    """What drafting would have brought at every place of a text.

    Attributes:
      domain: of its prompt.
      reach: int32 [tokens], tokens that a drafted round commits from each token on.
    """

    domain: str
    reach: np.ndarray


def find_reach(round_tokens: Sequence[int], longest: int) -> np.ndarray:
    """Compute what a drafted round commits from every place of a text, see the module.

    Args:
      round_tokens: tokens that each round committed, the bonus included.
      longest: most tokens of a round.

    Returns:
      int32 [tokens].
    """
    drafted = [
        place < count - 1 or count == longest for count in round_tokens for place in range(count)
    ]
    reach, run = np.zeros(len(drafted), np.int32), 0
    for place in range(len(drafted) - 1, -1, -1):
        run = run + 1 if drafted[place] else 0
        reach[place] = min(1 + run, longest, len(drafted) - place)
    return reach


def replay(
    texts: Sequence[RecordedText], cost: float, longest: int, bounds: Sequence[Bounds]
) -> np.ndarray:
    """Replay the pauses on texts that one process decodes one after another.

    Args:
      cost: time of a drafted round in rounds of `ar`.
      longest: most tokens of a round.
      bounds: to try.

    Returns:
      float [bounds], speed over `ar`.
    """
    room = max(len(text.reach) for text in texts)
    reach = np.stack([np.pad(text.reach, (0, room - len(text.reach))) for text in texts])
    lengths = np.array([len(text.reach) for text in texts], np.int32)
    every = Bounds(*(jnp.asarray(column) for column in np.array(bounds, np.float32).T))
    times = jax.vmap(lambda one: _replay_texts(reach, lengths, cost, longest, one))(every)
    return lengths.sum() / np.asarray(times)


@functools.partial(jax.jit, static_argnames="longest")
def _replay_texts(
    reach: jax.Array, lengths: jax.Array, cost: float, longest: int, bounds: Bounds
) -> jax.Array:
    """Add up the time of all texts, float32 [], in rounds of `ar`."""

    def advance(carry, _):
        state, place, time, text = carry
        on, drafts = place < lengths[text], state.left == 0
        taken = jnp.where(drafts, reach[text, jnp.minimum(place, reach.shape[1] - 1)], 1)
        spent = jnp.where(drafts, cost, 1.0)
        after: PauseState = jax.tree.map(
            lambda one, other: jnp.where(drafts, one, other),
            record_gain(state, taken - spent, bounds),
            count_pause(state),
        )
        state = jax.tree.map(lambda new, old: jnp.where(on, new, old), after, state)
        return (state, place + on * taken, time + on * spent, text), None

    def decode(carry, text):
        state, time = carry
        begun = (resume_pauses(state, bounds), jnp.int32(0), time, text)
        (state, _, time, _), _ = jax.lax.scan(advance, begun, length=reach.shape[1])
        return (state, time), None

    first = jax.tree.map(jnp.asarray, init_pauses(longest).replace(balance=bounds.first))
    return jax.lax.scan(decode, (first, jnp.float32(0)), jnp.arange(len(lengths)))[0][1]


def always_speed(texts: Sequence[RecordedText], cost: float) -> float:
    """Compute the speed over `ar` of drafting in every round."""
    rounds = 0
    for text in texts:
        place = 0
        while place < len(text.reach):
            place, rounds = place + int(text.reach[place]), rounds + 1
    return sum(len(text.reach) for text in texts) / (rounds * cost)
