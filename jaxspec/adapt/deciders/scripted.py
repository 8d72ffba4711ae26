"""Decisions that are known beforehand: those of an event log."""

from __future__ import annotations

from collections.abc import Sequence

from jaxspec.adapt.deciders.base import Decider, Decision, Query, State


def make_scripted(decisions: Sequence[Decision], like: Decider) -> Decider:
    """Make the decider that repeats `decisions`, one per query; later queries are skipped.

    Args:
      like: the decider that made them, whose updates are repeated too.
    """

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        known = query.index < len(decisions)
        return state, decisions[query.index] if known else Decision()

    return like._replace(init=dict, decide=decide, observe=lambda state, update: state)
