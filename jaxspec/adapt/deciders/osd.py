"""Online speculative decoding (Liu et al. 2024): an update every few queries, without any test.

Its code keeps the last eight requests and learns only the positions at which the draft was wrong,
with forward KL and a constant rate; its paper updates every eight queries. An update is one pass over
these requests: two steps where each request is a segment, see `LearnerOptions.batch`.
"""

from __future__ import annotations

from jaxspec.adapt.actions import FULL, SKIP
from jaxspec.adapt.deciders.base import Decider, Decision, Query, State

INTERVAL = 8


def make_osd(interval: int = INTERVAL) -> Decider:
    """Make OSD's decider: the whole drafter learns the latest `interval` queries, once."""

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        now = (query.index + 1) % interval == 0
        return state, Decision(FULL, FULL if now else SKIP)

    return Decider(dict, decide, rejected_only=True, anchored=False)
