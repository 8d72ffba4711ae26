"""SpecBlock's bandit over skip, head-only and full updates, as printed (section 3.4, algorithm 1).

The value v of an action is an exponential average of what an update of this kind changed in
measured throughput, per unit of s, the error mass of the query that triggered it. A query goes to
the action of the larger predicted gain s * v, or is skipped if both are at most 0. Ten queries warm
up. Up to the eighth update a query explores with a chance that falls from .30 to .10. After an
update two queries trigger nothing. Three windows of strictly falling tokens per round restore the
version of the latest good window and forget the values. All rejected positions are learnt from.

The paper does not give the buffers' sizes, the interval, the windows, the first values or what a
good window is. Ours are `ROOM`, 16 queries, 16 queries, 0, and a window that does not fall below
the one before it. Two properties are the rule's own. Once both values are at most 0 and exploration
has ended, nothing is ever measured again. And three windows of unchanged text fall by chance once
in six checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

from jaxspec.adapt.actions import ACTIONS, SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, UpdateResult, is_full
from jaxspec.adapt.deciders.values import ExploreOptions


@dataclasses.dataclass(frozen=True)
class PaperOptions(ExploreOptions):
    """Constants of the rule, besides those of `ExploreOptions`; `interval` and `window` are ours.

    Attributes:
      least: s_min, the error mass of the triggering query below which an update's result is not
        counted.
      cool_down: queries after an update that trigger none.
      interval: N, queries over which an update's throughput is measured.
      window: queries of a window of the rollback rule.
    """

    least: float = 5.0
    cool_down: int = 2
    interval: int = 16
    window: int = 16


def make_bandit_paper(
    options: PaperOptions | None = None,
    room: Mapping[str, int] = ROOM,
    actions: Sequence[str] = ACTIONS,
) -> Decider:
    """Make the paper's decider.

    Args:
      actions: that it chooses among; (`full`,) is the ablation without head-only updates.
    """
    given = options or PaperOptions()

    def init() -> State:
        return {
            "values": dict.fromkeys(ACTIONS, 0.0),
            "updates": 0,
            "quiet": 0,  # queries left that may not trigger
            "before": [0, 0.0],  # tokens and seconds of about an interval, up to now
            "open": [],  # measurements of updates, see `_measure`
            "trigger": 0.0,  # s of the query that triggered the latest update
            "window": [0, 0],  # tokens and rounds
            "falling": [],  # tokens per round of the latest windows
            "good": 0,  # version at the end of the latest good window
            "seen": 0,
        }

    def choose(state: State, query: Query) -> str:
        values = state["values"]
        if query.draws[0] < given.chance(state["updates"]):
            return actions[int(len(actions) * query.draws[1])]
        best = max(actions, key=lambda action: values[action])
        return best if query.error * values[best] > 0 else SKIP

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        state = _measure(_copy(state), query, given)
        state, restore = _watch(state, query, given)
        state["seen"] += 1
        quiet, state["quiet"] = state["quiet"], max(state["quiet"] - 1, 0)
        if state["seen"] <= given.warm_up:
            return state, Decision(restore=restore)
        keep = choose(state, query)
        if keep == SKIP or quiet or not is_full(query, keep, room):
            return state, Decision(keep, restore=restore)
        state["trigger"] = query.error
        return state, Decision(keep, keep, restore)

    def observe(state: State, update: UpdateResult) -> State:
        state = _copy(state)
        tokens, seconds = state["before"]
        reference = tokens / max(seconds, 1e-9)
        state["open"] = [*state["open"], [update.action, state["trigger"], reference, 0, 0.0, 0]]
        state["updates"] += 1
        state["quiet"] = given.cool_down
        return state

    return Decider(init, decide, observe, rejected_only=True, reads_error=True)


def _copy(state: State) -> State:
    """Copy a state one level deep, so that the functions stay pure."""
    return {
        name: dict(value)
        if isinstance(value, dict)
        else list(value)
        if isinstance(value, list)
        else value
        for name, value in state.items()
    }


def _measure(state: State, query: Query, given: PaperOptions) -> State:
    """Add a query to the open intervals; the value of an action moves when its interval ends.

    An interval is [action, s_trig, throughput before, tokens, seconds, queries]. Updates may
    follow each other faster than intervals end, so several are open at a time.
    """
    values, still = dict(state["values"]), []
    for action, error, reference, tokens, seconds, count in state["open"]:
        tokens, seconds, count = tokens + query.tokens, seconds + query.seconds, count + 1
        if count < given.interval:
            still.append([action, error, reference, tokens, seconds, count])
        elif error >= given.least:
            change = (tokens / max(seconds, 1e-9) - reference) / error
            values[action] = given.average(values[action], change)
    # Older queries fade out, so that this is about the throughput of an interval.
    fade, (tokens, seconds) = 1 - 1 / given.interval, state["before"]
    before = [fade * tokens + query.tokens, fade * seconds + query.seconds]
    return state | {"values": values, "open": still, "before": before}


def _watch(state: State, query: Query, given: PaperOptions) -> tuple[State, int | None]:
    """Add a query to the window; at the end of a third falling one name the version to restore.

    None is named if the good window's version decodes already.
    """
    tokens, rounds = state["window"][0] + query.tokens, state["window"][1] + query.rounds
    state["window"] = [tokens, rounds]
    if (state["seen"] + 1) % given.window:
        return state, None
    pace, known = tokens / max(rounds, 1), state["falling"]
    state["window"] = [0, 0]
    if not known or pace >= known[-1]:
        state["good"] = query.version
    state["falling"] = latest = [*known[-2:], pace]
    if len(latest) == 3 and latest[0] > latest[1] > latest[2]:
        state["values"] = dict.fromkeys(ACTIONS, 0.0)
        state["falling"], state["open"] = [], []
        return state, None if state["good"] == query.version else state["good"]
    return state, None
