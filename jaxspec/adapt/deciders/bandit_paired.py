"""A bandit that is paid by paired held-out positions, and can always start again.

It differs from SpecBlock's rule where that rule measures noise. An update is published only if more
held-out positions became right than wrong. The value of an action is the share of errors that it
removes, less its cost: that compares the same positions before and after, where a comparison of two
windows of throughput mostly compares their prompts. Values start above zero and drift back there
while nothing is trained, so no state is final. A published version is taken back if its windows are
clearly worse.

Where the tokens per round tell of another text (`jaxspec.adapt.deciders.shift`), the evidence of the
older one counts no more, exploration is armed, and older versions are compared with the current one
on the new text. So what an update forgets does not hold it back, and is not lost either.

Updates are paid from an account, so that trying costs little where it brings nothing: it earns a
share of all time, and of what published updates are believed to save. What is paid need not wait
for a full buffer. An update trains on the newest segments, most of which were there before, so it
learns little from few of them and forgets less. Nothing is gathered as long as evidence would be
overwritten before an update could be paid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from jaxspec.adapt.actions import ACTIONS, BOTH, FULL, HEAD, SKIP
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, Update, is_full
from jaxspec.adapt.deciders.exploring import ExploreOptions
from jaxspec.adapt.deciders.rivals import Rivals
from jaxspec.adapt.deciders.shift import Shift
from jaxspec.adapt.deciders.windows import Watch
from jaxspec.adapt.gate import Flips


@dataclasses.dataclass(frozen=True)
class PairedOptions(ExploreOptions):
    """Constants of the rule, besides those of `ExploreOptions`.

    Attributes:
      first: value of every action at the start.
      drift: share of the way back to `first` that a value goes per window without an update.
      floor: chance of exploring after the cold start.
      horizon: queries over which an update must pay for itself.
      window: queries of a window.
      errors, least: a version is taken back if a window is worse by more than this many standard
        errors and by more than this share. Two errors would take back one in forty good windows.
      allowance: share of the time that updates may take without gaining anything.
      believed: share of a published update's expected saving that is credited.
      early: share of a buffer's room that is enough for an update.
      reach: evidence is gathered if an update can be paid within so many queries.
      steps: gradient steps of an update. recent: newest segments that it trains on.
      shift: the test for a change of the text.
      rivals: which older versions are compared after such a change, and when.
    """

    first: float = 0.01
    drift: float = 0.02
    floor: float = 0.02
    horizon: int = 512
    window: int = 32
    errors: float = 3.7
    least: float = 0.02
    allowance: float = 0.01
    believed: float = 0.5
    early: float = 0.25
    reach: int = 64
    steps: int = 8
    recent: int = 32
    shift: Shift = Shift()
    rivals: Rivals = Rivals()


def make_bandit_paired(
    options: PairedOptions | None = None, room: Mapping[str, int] = ROOM
) -> Decider:
    """Make the decider."""
    given = options or PairedOptions()
    watch, shift, rivals = Watch(given.window, given.errors, given.least), given.shift, given.rivals
    enough = {action: math.ceil(given.early * size) for action, size in room.items()}

    def init() -> State:
        return {
            "values": {HEAD: given.first, FULL: given.first},
            "updates": 0,
            "since": 0,  # updates since exploration was armed
            "idle": 0,  # queries since the latest update
            "watch": watch.init(),
            "shift": shift.init(),
            "rivals": rivals.init(),
            "version": 0,
            "seconds": 0.0,  # of a query, a running mean
            "account": 0.0,  # seconds that updates may take
            "costs": {HEAD: 0.0, FULL: 0.0},  # seconds of the latest update of each action
            "seen": 0,
        }

    def choose(state: State, query: Query) -> str:
        if query.draws[0] < given.chance(state["since"], given.floor):
            return ACTIONS[int(2 * query.draws[1])]
        best = max(ACTIONS, key=lambda action: state["values"][action])
        return best if state["values"][best] > 0 else SKIP

    def cost_of(state: State, query: Query, action: str) -> float:
        return state["costs"][action] or query.prices.get(action, 0.0)

    def rests(state: State, query: Query) -> bool:
        """Whether the next query's evidence would be read by nobody."""
        soon = state["account"] + given.reach * given.allowance * state["seconds"]
        dear = all(soon < cost_of(state, query, action) for action in ACTIONS)
        return dear and not rivals.waits(state["rivals"])

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        state, decision = act(state, query)
        return state, decision._replace(gather=not rests(state, query))

    def act(state: State, query: Query) -> tuple[State, Decision]:
        if not query.rounds:  # it ended with its first token, and says nothing of the drafter
            return state, Decision()
        seen = state["seen"] + 1
        mean = state["seconds"] + (query.seconds - state["seconds"]) / min(seen, given.window)
        account = state["account"] + given.allowance * query.seconds
        state = state | {"seen": seen, "seconds": mean, "account": account}
        state = state | {"version": query.version}
        state, since = listen(_drift(state, given), query)
        watched, restore = watch.add(state["watch"], query, query.version)
        state = state | {"watch": watched}
        if restore is not None:
            state = _arm(state | {"values": {HEAD: given.first, FULL: given.first}}, given)
        judge = rivals.look(state["rivals"], query) if restore is None else ()
        if seen <= given.warm_up or since is not None:
            return state, Decision(BOTH, SKIP, restore, since, *judge)
        action = choose(state, query)
        paid = action != SKIP and state["account"] >= cost_of(state, query, action)
        train = action if paid and is_full(query, action, enough) else SKIP
        # Both buffers fill, also while nothing pays: so exploring waits for no evidence.
        return state, Decision(BOTH, train, restore, None, *judge)

    def listen(state: State, query: Query) -> tuple[State, int | None]:
        """After a change of the text, start again with its first query."""
        moved, fresh = shift.add(state["shift"], query)
        state = state | {"shift": moved, "rivals": rivals.add(state["rivals"])}
        if fresh is None:
            return state, None
        changed = {"rivals": rivals.change(state["rivals"], query.version)}
        # Windows of other text say nothing of this one, if nobody names the domains.
        changed["watch"] = watch.init(query.version)
        return _arm(state, given) | changed, query.index + 1 - fresh

    def elect(state: State, flips: Mapping[int, Flips]) -> tuple[State, int | None]:
        judged, best = rivals.elect(state["rivals"], flips)
        state = state | {"rivals": judged}
        # Nor may a window go back to a version that lost.
        return (state if best is None else state | {"watch": watch.init(best)}), best

    def observe(state: State, update: Update) -> State:
        gain = (update.up - update.down) / max(update.missed, 1)
        horizon = given.horizon * state["seconds"]
        cost = update.seconds / max(horizon, 1e-9)
        earned = (gain if update.published is not None else min(gain, 0.0)) - cost
        old = state["values"][update.action]
        values = state["values"] | {update.action: given.average(old, earned)}
        saved = 0.0
        if update.published is not None:
            saved = given.believed * max(gain, 0.0) * horizon
            state = state | {"rivals": rivals.publish(state["rivals"], state["version"])}
        costs = state["costs"] | {update.action: update.seconds}
        costs[FULL] = costs[FULL] or 2 * update.seconds  # a guess, until there is one
        return state | {
            "values": values,
            "account": state["account"] + saved - update.seconds,
            "costs": costs,
            "updates": state["updates"] + 1,
            "since": state["since"] + 1,
            "idle": 0,
        }

    trains = {"steps": given.steps, "room": enough, "recent": given.recent}
    return Decider(init, decide, observe, elect, gated=True, **trains)


def _drift(state: State, given: PairedOptions) -> State:
    """Let values return to where they began, a little per window without an update."""
    idle = state["idle"] + 1
    if idle % given.window:
        return state | {"idle": idle}
    values = {
        action: value + given.drift * (given.first - value) if value < 0 else value
        for action, value in state["values"].items()
    }
    return state | {"idle": idle, "values": values}


def _arm(state: State, given: PairedOptions) -> State:
    """Explore again, with values not below where they began."""
    values = {action: max(value, given.first) for action, value in state["values"].items()}
    return state | {"values": values, "since": 0}
