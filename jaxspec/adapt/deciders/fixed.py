"""Deciders without a rule that learns: never, always, by chance, and OSD's every few queries.

OSD is online speculative decoding (Liu et al. 2024). Its code keeps the last eight requests and
learns only the positions at which the draft was wrong, with forward KL and a constant rate; its
paper updates every eight queries. An update is one pass over these requests: two steps where each
request is a segment, see `LearnerOptions.batch`.
"""

from __future__ import annotations

from collections.abc import Mapping

from jaxspec.adapt.actions import FULL, HEAD, SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, is_full

OSD_INTERVAL = 8


def make_never(learns: bool = False) -> Decider:
    """Make the decider that skips every query: the drafter stays as it was deployed.

    Args:
      learns: gather evidence all the same, to measure what that takes.
    """
    return Decider(dict, lambda state, query: (state, Decision()), learns=learns)


def make_always(action: str, room: Mapping[str, int] = ROOM) -> Decider:
    """Make the decider that takes `action` whenever its buffer is full."""

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        return state, Decision(action, action if is_full(query, action, room) else SKIP)

    return Decider(dict, decide)


def make_random(room: Mapping[str, int] = ROOM) -> Decider:
    """Make the decider that takes each of the three actions a third of the time."""

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        action = (SKIP, HEAD, FULL)[int(3 * query.draws[0])]
        return state, Decision(action, action if is_full(query, action, room) else SKIP)

    return Decider(dict, decide)


def make_osd(interval: int = OSD_INTERVAL) -> Decider:
    """Make OSD's decider: the whole drafter learns the latest `interval` queries once, untested."""

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        now = (query.index + 1) % interval == 0
        return state, Decision(FULL, FULL if now else SKIP)

    return Decider(dict, decide, rejected_only=True, anchored=False)
