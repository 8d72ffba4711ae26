"""Update with one action whenever its buffer is full."""

from __future__ import annotations

from collections.abc import Mapping

from jaxspec.adapt.actions import SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, is_full


def make_always(action: str, room: Mapping[str, int] = ROOM) -> Decider:
    """Make the decider that always takes `action`."""

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        return state, Decision(action, action if is_full(query, action, room) else SKIP)

    return Decider(dict, decide)
