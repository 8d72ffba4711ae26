"""Choose head, full or skip by chance for every query."""

from __future__ import annotations

from collections.abc import Mapping

from jaxspec.adapt.actions import FULL, HEAD, SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, is_full


def make_random(room: Mapping[str, int] = ROOM) -> Decider:
    """Make the decider that takes each of the three actions a third of the time."""

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        action = (SKIP, HEAD, FULL)[int(3 * query.draws[0])]
        return state, Decision(action, action if is_full(query, action, room) else SKIP)

    return Decider(dict, decide)
