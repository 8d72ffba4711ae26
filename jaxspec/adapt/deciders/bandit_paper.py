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
from jaxspec.adapt.deciders.base import (
    ROOM,
    Decider,
    Decision,
    Query,
    State,
    Update,
    is_full,
)


@dataclasses.dataclass(frozen=True)
class PaperOptions:
    """Constants of the rule; `interval` and `window` are ours.

    Attributes:
      rate: alpha of the exponential averages.
      least: s_min, the error mass below which an update's result is not counted.
      warm_up: queries before anything is trained.
      cold_start: updates that explore, with a chance falling from `explore[0]` to `explore[1]`.
      cool_down: queries after an update that trigger none.
      interval: N, queries over which an update's throughput is measured.
      window: queries of a window of the rollback rule.
    """

    rate: float = 0.10
    least: float = 5.0
    warm_up: int = 10
    cold_start: int = 8
    explore: tuple[float, float] = (0.30, 0.10)
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
            "before": [0, 0.0],  # tokens and seconds of the latest interval without a new version
            "open": None,  # the measurement of the latest update
            "error": {HEAD: 0.0, FULL: 0.0},
            "window": [0, 0],  # tokens and rounds
            "falling": [],  # tokens per round of the latest windows
            "good": [0.0, 0],  # the best window so far and its version
            "version": 0,
            "seen": 0,
        }

    def choose(state: State, query: Query) -> str:
        values, count = state["values"], state["updates"]
        if count < given.cold_start:
            high, low = given.explore
            chance = high + (low - high) * count / max(given.cold_start - 1, 1)
            if query.draws[0] < chance or max(values.values()) <= 0:
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

    def observe(state: State, update: Update) -> State:
        state, action = _copy(state), update.action
        tokens, seconds = state["before"]
        state["open"] = [action, state["error"][action], tokens / max(seconds, 1e-9), 0, 0.0, 0]
        state["error"][action] = 0.0
        state["updates"] += 1
        state["quiet"] = given.cool_down
        if update.published is not None:
            state["version"] = update.published
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
    """Add a query to the open interval, and at its end move the action's value."""
    if state["open"] is None:
        tokens, seconds = state["before"]
        # Older queries fade out, so that this is about the throughput of an interval.
        fade = 1 - 1 / given.interval
        state["before"] = [fade * tokens + query.tokens, fade * seconds + query.seconds]
        return state
    action, error, reference, tokens, seconds, count = state["open"]
    tokens, seconds, count = tokens + query.tokens, seconds + query.seconds, count + 1
    if count < given.interval:
        state["open"] = [action, error, reference, tokens, seconds, count]
        return state
    if error >= given.least:
        change = (tokens / max(seconds, 1e-9) - reference) / error
        old = state["values"][action]
        state["values"][action] = (1 - given.rate) * old + given.rate * change
    state["open"], state["before"] = None, [tokens, seconds]
    return state


def _watch(state: State, query: Query, given: PaperOptions) -> tuple[State, int | None]:
    """Add a query to the window, and at the end of a third falling one name a version to restore."""
    tokens, rounds = state["window"][0] + query.tokens, state["window"][1] + query.rounds
    state["window"] = [tokens, rounds]
    if (state["seen"] + 1) % given.window:
        return state, None
    pace = tokens / max(rounds, 1)
    state["window"] = [0, 0]
    if pace > state["good"][0]:
        state["good"] = [pace, state["version"]]
    state["falling"] = [*state["falling"][-2:], pace]
    latest = state["falling"]
    if len(latest) == 3 and latest[0] > latest[1] > latest[2]:
        state["values"] = {HEAD: 0.0, FULL: 0.0}
        state["falling"], state["open"] = [], None
        state["version"] = state["good"][1]
        return state, state["version"]
    return state, None
