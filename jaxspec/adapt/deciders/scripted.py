"""Decisions that are known beforehand: those of an event log, or of an oracle."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxspec.adapt.actions import SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, is_full


def make_scripted(decisions: Sequence[Decision], like: Decider) -> Decider:
    """Make the decider that repeats `decisions`, one per query; later queries are skipped.

    Args:
      like: the decider that made them, whose updates are repeated too.
    """

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        known = query.index < len(decisions)
        return state, decisions[query.index] if known else Decision()

    return like._replace(init=dict, decide=decide, observe=lambda state, update: state)


def make_oracle(actions: Sequence[str], room: Mapping[str, int] = ROOM) -> Decider:
    """Make the decider that knows the best action of every query in hindsight.

    Args:
      actions: `skip`, `head` or `full` per query.
    """

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        action = actions[query.index] if query.index < len(actions) else SKIP
        return state, Decision(action, action if is_full(query, action, room) else SKIP)

    return Decider(dict, decide)
