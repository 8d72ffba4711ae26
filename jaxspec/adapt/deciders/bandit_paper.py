"""SpecBlock's bandit over skip, head-only and full updates, as printed (section 3.4, algorithm 1).

The value of an action is an exponential average of what an update of this kind changed in measured
throughput, per unit of the error mass s that triggered it. A query goes to the action of the larger
predicted gain s * v, or is skipped if both are at most 0. Ten queries warm up; the first eight
updates explore; after an update two queries trigger nothing. Three windows of strictly falling
tokens per round restore the best version so far and forget the values.

The paper does not give the buffers' sizes, the interval, the windows or the first values: ours are
`ROOM`, 16 queries, 16 queries and 0. Two properties are the rule's own. Once both values are at
most 0 and exploration has ended, nothing is ever measured again. And three windows of unchanged
text fall by chance once in six checks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from jaxspec.adapt.actions import ACTIONS, FULL, HEAD, SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, UpdateResult, is_full
from jaxspec.adapt.deciders.values import ExploreOptions


@dataclasses.dataclass(frozen=True)
class PaperOptions(ExploreOptions):
    """Constants of the rule, besides those of `ExploreOptions`; `interval` and `window` are ours.

    Attributes:
      least: s_min, the error mass below which an update's result is not counted.
      cool_down: queries after an update that trigger none.
      interval: N, queries over which an update's throughput is measured.
      window: queries of a window of the rollback rule.
    """

    least: float = 5.0
    cool_down: int = 2
    interval: int = 16
    window: int = 16


def make_bandit_paper(
    options: PaperOptions | None = None, room: Mapping[str, int] = ROOM
) -> Decider:
    """Make the paper's decider."""
    given = options or PaperOptions()

    def init() -> State:
        return {
            "values": {HEAD: 0.0, FULL: 0.0},
            "updates": 0,
            "quiet": 0,  # queries left that may not trigger
            "before": [0, 0.0],  # tokens and seconds of about an interval, up to now
            "open": [],  # measurements of updates, see `_measure`
            "error": {HEAD: 0.0, FULL: 0.0},
            "window": [0, 0],  # tokens and rounds
            "falling": [],  # tokens per round of the latest windows
            "good": [0.0, 0],  # the best window so far and its version
            "seen": 0,
        }

    def choose(state: State, query: Query) -> str:
        values, count = state["values"], state["updates"]
        chance = given.chance(count)
        if count < given.cold_start and max(values.values()) <= 0:
            chance = 1.0  # nothing was gained yet: go on trying
        if query.draws[0] < chance:
            return ACTIONS[int(2 * query.draws[1])]
        best = HEAD if values[HEAD] >= values[FULL] else FULL
        return best if query.error * values[best] > 0 else SKIP

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        state = _measure(_copy(state), query, given)
        state, restore = _watch(state, query, given)
        state["seen"] += 1
        quiet, state["quiet"] = state["quiet"], max(state["quiet"] - 1, 0)
        if state["seen"] <= given.warm_up:
            return state, Decision(restore=restore)
        keep = choose(state, query)
        if keep == SKIP:
            return state, Decision(restore=restore)
        state["error"][keep] += query.error
        full = is_full(query, keep, room) and not quiet
        return state, Decision(keep, keep if full else SKIP, restore)

    def observe(state: State, update: UpdateResult) -> State:
        state, action = _copy(state), update.action
        tokens, seconds = state["before"]
        reference = tokens / max(seconds, 1e-9)
        state["open"] = [*state["open"], [action, state["error"][action], reference, 0, 0.0, 0]]
        state["error"][action] = 0.0
        state["updates"] += 1
        state["quiet"] = given.cool_down
        return state

    return Decider(init, decide, observe, reads_error=True)


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

    An interval is [action, error mass, throughput before, tokens, seconds, queries]. Updates may
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
    """Add a query to the window, and at the end of a third falling one name a version to restore."""
    tokens, rounds = state["window"][0] + query.tokens, state["window"][1] + query.rounds
    state["window"] = [tokens, rounds]
    if (state["seen"] + 1) % given.window:
        return state, None
    pace = tokens / max(rounds, 1)
    state["window"] = [0, 0]
    if pace > state["good"][0]:
        state["good"] = [pace, query.version]
    state["falling"] = [*state["falling"][-2:], pace]
    latest = state["falling"]
    if len(latest) == 3 and latest[0] > latest[1] > latest[2]:
        state["values"] = {HEAD: 0.0, FULL: 0.0}
        state["falling"], state["open"] = [], []
        return state, state["good"][1]
    return state, None
