"""A bandit that is paid by paired held-out positions, and can always start again.

It differs from SpecBlock's rule where that rule measures noise. An update is published only if more
held-out positions became right than wrong. The value of an action is the share of errors that it
removes, less its cost: that compares the same positions before and after, where a comparison of two
windows of throughput mostly compares their prompts. Values start above zero and drift back there
while nothing is trained, so no state is final. A published version is taken back if its windows are
clearly worse.

Where the tokens per round tell of another text (`jaxspec.adapt.deciders.shift`), the evidence of
the older one counts no more, exploration is armed, and older versions are compared with the current
one on the new text. So what an update forgets does not hold it back, and is not lost either.

Updates are paid from an account (`jaxspec.adapt.deciders.account`). What is paid need not wait for
a full buffer. An update trains on the newest segments, most of which were there before, so it
learns little from few of them and forgets less. Nothing is gathered as long as evidence would be
too old before an update could be paid.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping

from jaxspec.adapt.actions import BOTH, SKIP
from jaxspec.adapt.deciders.account import Account
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, State, UpdateResult, is_full
from jaxspec.adapt.deciders.rivals import Rivals
from jaxspec.adapt.deciders.shift import Shift
from jaxspec.adapt.deciders.values import Values
from jaxspec.adapt.deciders.windows import Watch
from jaxspec.adapt.gate import Flips


@dataclasses.dataclass(frozen=True)
class PairedOptions:
    """Constants of the rule.

    Attributes:
      horizon: queries over which an update must pay for itself.
      window: queries of a window.
      errors, least: a version is taken back if a window is worse by more than this many standard
        errors and by more than this share. Two errors would take back one in forty good windows.
      early: share of a buffer's room that is enough for an update.
      steps: gradient steps of an update. recent: newest segments that it trains on.
      values: of actions.
      account: what updates are paid from.
      shift: the test for a change of the text.
      rivals: which older versions are compared after such a change, and when.
    """

    horizon: int = 512
    window: int = 32
    errors: float = 3.7
    least: float = 0.02
    early: float = 0.25
    steps: int = 8
    recent: int = 32
    values: Values = Values()
    account: Account = Account()
    shift: Shift = Shift()
    rivals: Rivals = Rivals()


def make_bandit_paired(
    options: PairedOptions | None = None, room: Mapping[str, int] = ROOM
) -> Decider:
    """Make the decider."""
    given = options or PairedOptions()
    watch = Watch(given.window, given.errors, given.least)
    values, account, shift, rivals = given.values, given.account, given.shift, given.rivals
    enough = {action: math.ceil(given.early * size) for action, size in room.items()}

    def init() -> State:
        return {
            "values": values.init(),
            "account": account.init(),
            "watch": watch.init(),
            "shift": shift.init(),
            "rivals": rivals.init(),
            "version": 0,
            "seen": 0,
        }

    def decide(state: State, query: Query) -> tuple[State, Decision]:
        state, decision = act(state, query)
        gather = account.reaches(state["account"], query) or rivals.waits(state["rivals"])
        return state, decision._replace(gather=gather)

    def act(state: State, query: Query) -> tuple[State, Decision]:
        if not query.rounds:  # it ended with its first token, and says nothing of the drafter
            return state, Decision()
        seen = state["seen"] + 1
        state = state | {
            "values": values.add(state["values"]),
            "account": account.earn(state["account"], query, seen),
            "version": query.version,
            "seen": seen,
        }
        state, since = listen(state, query)
        watched, restore = watch.add(state["watch"], query, query.version)
        state = state | {"watch": watched}
        if restore is not None:
            state = state | {"values": values.init() | {"idle": state["values"]["idle"]}}
        judge = rivals.look(state["rivals"], query) if restore is None else ()
        if seen <= values.warm_up or since is not None:
            return state, Decision(BOTH, SKIP, restore, since, *judge)
        action = values.choose(state["values"], query)
        paid = action != SKIP and account.pays(state["account"], query, action)
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
        changed["values"] = values.arm(state["values"])
        # Windows of other text say nothing of this one, if nobody names the domains.
        changed["watch"] = watch.init(query.version)
        return state | changed, query.index + 1 - fresh

    def elect(state: State, flips: Mapping[int, Flips]) -> tuple[State, int | None]:
        judged, best = rivals.elect(state["rivals"], flips)
        state = state | {"rivals": judged}
        # Nor may a window go back to a version that lost.
        return (state if best is None else state | {"watch": watch.init(best)}), best

    def observe(state: State, update: UpdateResult) -> State:
        gain = (update.up - update.down) / max(update.missed, 1)
        horizon = given.horizon * state["account"]["mean"]
        cost = update.seconds / max(horizon, 1e-9)
        earned = (gain if update.published is not None else min(gain, 0.0)) - cost
        saved = 0.0
        if update.published is not None:
            saved = max(gain, 0.0) * horizon
            state = state | {"rivals": rivals.publish(state["rivals"], state["version"])}
        return state | {
            "values": values.learn(state["values"], update.action, earned),
            "account": account.settle(state["account"], update, saved),
        }

    trains = {"steps": given.steps, "room": enough, "recent": given.recent}
    return Decider(init, decide, observe, elect, gated=True, **trains)
