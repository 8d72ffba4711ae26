"""Replay when BASTION's controller pauses drafting, on recorded texts and without a model.

What a draft would have been accepted from any place of a text follows from the rounds of one
decode: tokens that a round accepted are accepted from every place before them, and the token that
ended a round is not. The bonus token after a wholly accepted draft counts as accepted.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.bastion.pauses import (
    PauseRule,
    PauseState,
    count_pause,
    drafting_pays,
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
    texts: Sequence[RecordedText],
    orders: np.ndarray,
    costs: Sequence[float],
    longest: int,
    rules: Sequence[PauseRule],
    begins: np.ndarray,
) -> np.ndarray:
    """Replay the pauses on texts that processes decode one after another.

    Args:
      orders: int [orders, texts], permutations of the texts.
      costs: times of a drafted round in rounds of `ar`.
      longest: most tokens of a round.
      rules: to try.
      begins: bool [texts], whether a new process begins before this place of an order.

    Returns:
      float [rules, costs, texts], time of each text in rounds of `ar`, the mean of all orders.
    """
    room = max(len(text.reach) for text in texts)
    reach = np.stack([np.pad(text.reach, (0, room - len(text.reach))) for text in texts])
    lengths = np.array([len(text.reach) for text in texts], np.int32)
    every = PauseRule(*(jnp.asarray(column) for column in np.array(rules, np.float32).T))
    run = functools.partial(_replay_texts, reach, lengths, begins, longest=longest)
    for axes in ((0, None, None), (None, 0, None), (None, None, 0)):
        run = jax.vmap(run, axes)
    times = run(jnp.asarray(orders), jnp.asarray(costs, jnp.float32), every)
    return np.asarray(times, np.float64).mean(2)


@functools.partial(jax.jit, static_argnames="longest")
def _replay_texts(
    reach: jax.Array,
    lengths: jax.Array,
    begins: jax.Array,
    order: jax.Array,
    cost: jax.Array,
    rule: PauseRule,
    *,
    longest: int,
) -> jax.Array:
    """Compute the time of each text, float32 [texts], in rounds of `ar`."""
    first: PauseState = jax.tree.map(jnp.asarray, init_pauses(longest, rule))

    def advance(text, carry):
        state, place, time = carry
        drafts = drafting_pays(state, rule)
        taken = jnp.where(drafts, reach[text, place], 1)
        spent = jnp.where(drafts, cost, 1.0)
        state = jax.tree.map(
            lambda one, other: jnp.where(drafts, one, other),
            record_gain(state, taken - spent, rule),
            count_pause(state, rule),
        )
        return state, place + taken, time + spent

    def decode(state, place):
        text, new = place
        state = jax.tree.map(lambda one, other: jnp.where(new, one, other), first, state)
        begun = (resume_pauses(state, rule), jnp.int32(0), jnp.float32(0))
        state, _, time = jax.lax.while_loop(
            lambda carry: carry[1] < lengths[text], functools.partial(advance, text), begun
        )
        return state, time

    times = jax.lax.scan(decode, first, (order, begins))[1]
    return jnp.zeros(len(lengths)).at[order].set(times)


def draft_always(texts: Sequence[RecordedText], costs: Sequence[float]) -> np.ndarray:
    """Compute the time of each text in rounds of `ar`, if every round drafts: float [costs, texts]."""
    rounds = np.zeros(len(texts))
    for number, text in enumerate(texts):
        place = 0
        while place < len(text.reach):
            place, rounds[number] = place + int(text.reach[place]), rounds[number] + 1
    return np.outer(costs, rounds)
