"""The protocol of deciders, and what they are told.

A decider sees every query once it is decoded, then every update. Its state is plain data, which
JSON can hold, so that a session can be resumed. Its functions are pure: randomness comes with the
query.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxspec.adapt.actions import SKIP
from jaxspec.adapt.gate import Flips

State = dict[str, Any]


class Query(NamedTuple):
    """A decoded query.

    Attributes:
      index: number of the query, from 0.
      domain: what the caller says the query is about; "" if nothing.
      tokens, rounds: generated, the prefill's first token not counted.
      seconds: of decoding, with the updates since the query before it.
      error: s, the sum over rejected positions of 1 - r, where r is the drafter's probability of
        the token that the target chose: its most probable one at temperature 0, else a sample.
      positions: number of rejected positions. It and `error` are 0 where nothing was gathered.
      filled: {action: positions to train on in the action's buffer}, this query's not included.
      fresh: positions to train on of this query.
      draws: three uniform numbers.
      prices: {action: seconds that its first update would take}; empty while they are not known.
      version: that decoded it.
    """

    index: int
    domain: str
    tokens: int
    rounds: int
    seconds: float
    error: float
    positions: int
    filled: Mapping[str, int]
    fresh: int
    draws: tuple[float, float, float]
    prices: Mapping[str, float] = MappingProxyType({})
    version: int = 0

    @property
    def pace(self) -> float:
        """Tokens per round, the bonus included."""
        return self.tokens / max(self.rounds, 1)


class Decision(NamedTuple):
    """What to do after a query.

    Attributes:
      keep: action whose buffer the query's positions go to, `both` or `skip`.
      train: action to update with now, or `skip`.
      restore: published version to go back to before anything else, or None.
      since: number of the first query whose evidence still counts, older one is forgotten; None:
        all of it counts.
      judge: versions to compare with the one that decodes, on the evidence that counts; the
        decider's `elect` says which of them decodes next.
      judge_since: number of the first query whose evidence they are compared on; None: all of it.
      gather: whether the next query's evidence is gathered.
    """

    keep: str = SKIP
    train: str = SKIP
    restore: int | None = None
    since: int | None = None
    judge: tuple[int, ...] = ()
    judge_since: int | None = None
    gather: bool = True


class UpdateResult(NamedTuple):
    """An update that was made.

    Attributes:
      action: of the update.
      seconds: it took, without compiling its program.
      up, down: held-out positions at which the target's token became the drafter's first choice, or
        ceased to be.
      held: number of held-out positions compared.
      missed: those at which the weights before the update were wrong.
      published: version that decodes since; None if the update was refused.
    """

    action: str
    seconds: float
    up: int
    down: int
    held: int
    missed: int
    published: int | None


def elect_none(state: State, flips: Mapping[int, Flips]) -> tuple[State, int | None]:
    """Let no other version decode."""
    return state, None


class Decider(NamedTuple):
    """A decider.

    Attributes:
      init: () -> state.
      decide: (state, query) -> (state, decision).
      observe: (state, update) -> state, called after every update.
      elect: (state, {version: what it changes at positions of the evidence}) -> (state, the version
        that decodes next or None for the one that did), called if a decision has `judge`.
      gated: whether an update is published only if it wins a paired test on held-out positions.
      rejected_only: whether its evidence is all rejected positions with equal weights, as the
        papers have it: none is held out, and no accepted one is added.
      anchored: whether updates stay near the weights before deployment.
      steps: gradient steps of an update; None: one pass over its segments.
      room: {action: positions to train on without which it makes no update}; None: those that fill
        the session's buffers.
      recent: an update trains on the newest segments, so many of them; None: on those of its
        buffer.
      reads_error: whether it reads `Query.error`, which costs a pass of the drafter; else that is
        0.
      learns: whether it ever wants evidence; without, calls run the program that gathers none.
    """

    init: Callable[[], State]
    decide: Callable[[State, Query], tuple[State, Decision]]
    observe: Callable[[State, UpdateResult], State] = lambda state, update: state
    elect: Callable[[State, Mapping[int, Flips]], tuple[State, int | None]] = elect_none
    gated: bool = False
    rejected_only: bool = False
    anchored: bool = True
    steps: int | None = None
    room: Mapping[str, int] | None = None
    recent: int | None = None
    reads_error: bool = False
    learns: bool = True


# Positions that fill an action's buffer.
ROOM = {"head": 512, "full": 1024}


def is_full(query: Query, action: str, room: Mapping[str, int] = ROOM) -> bool:
    """Whether the query fills the action's buffer."""
    return action != SKIP and query.filled[action] + query.fresh >= room[action]
