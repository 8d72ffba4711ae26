"""The oracle: it knows the best action of every query in hindsight, so it bounds all other rules.

It has to be told the actions, so its name alone makes no decider. `python -m benchmarks adapt` needs none:
it takes the best of the fixed arms block by block from what they measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from jaxspec.adapt.actions import SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, is_full


def make_oracle(actions: Sequence[str], room: Mapping[str, int] = ROOM) -> Decider:
    """Make the decider that knows the best action of every query in hindsight.

    Args:
      actions: `skip`, `head` or `full` per query.
    """

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        action = actions[query.index] if query.index < len(actions) else SKIP
        return state, Decision(action, action if is_full(query, action, room) else SKIP)

    return Decider(dict, decide)
