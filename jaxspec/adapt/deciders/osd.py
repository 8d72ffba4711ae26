"""Online speculative decoding (Liu et al. 2024): a step every few queries, without any test.

Its code keeps the last eight requests and learns only the positions at which the draft was wrong,
with forward KL and a constant rate; its paper updates every eight queries.
"""

from __future__ import annotations

from jaxspec.adapt.actions import FULL, SKIP
from jaxspec.adapt.deciders.base import Decider, Decision, Query, State

INTERVAL = 8


def make_osd(interval: int = INTERVAL) -> Decider:
    """Make OSD's decider: one step of the whole drafter every `interval` queries."""

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        now = (query.index + 1) % interval == 0
        return state, Decision(FULL, FULL if now else SKIP)

    return Decider(dict, decide, rejected_only=True, anchored=False, steps=1)
