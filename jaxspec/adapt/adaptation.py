"""What learns from decoded texts: their evidence, a decider, a trainer and published versions.

Evidence holds text and stays in memory; events and files hold numbers.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping, MutableSequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from jaxspec.adapt.actions import SKIP
from jaxspec.adapt.deciders import Decider, Decision, Query, UpdateResult, is_full, make_decider
from jaxspec.adapt.learning.evidence import Buffers
from jaxspec.adapt.learning.segments import Segments
from jaxspec.adapt.options import AdaptOptions
from jaxspec.adapt.prices import Meter, Prices, price_updates
from jaxspec.adapt.publish import hash_weights
from jaxspec.adapt.served import Served, check_drafter, copy_drafter
from jaxspec.adapt.turns import OwnDevice, Turns
from jaxspec.adapt.updates import is_finite, make_trainer
from jaxspec.adapt.work import Steps, Work
from jaxspec.call.arguments import check_seed
from jaxspec.core.params import Params
from jaxspec.core.runtime.compilations import compile_seconds
from jaxspec.core.runtime.jax_settings import under_own_settings

# What is told of every query: plain values, no text.
Event = dict[str, Any]


class Decoded(NamedTuple):
    """A query that was decoded.

    Attributes:
      domain: what it is about; windows are compared domain by domain.
      tokens, rounds: generated, the prefill's first token not counted.
      seconds: of decoding.
      version: of the drafter that decoded it.
      segments: of its evidence; they are read once, and only if evidence is wanted.
    """

    domain: str
    tokens: int
    rounds: int
    seconds: float
    version: int
    segments: Iterable[Segments]


class Adaptation:
    """Learn from queries, and publish versions of their drafter.

    Args:
      params: from `jaxspec.load`; it is not changed.
      decider: a name of `jaxspec.adapt.deciders.DECIDERS`, or a `Decider`.
      drafter: the drafter to adapt (None: the default one).
      options: see `AdaptOptions`.
      folder: where published versions are kept; one that holds some goes on with the newest. None:
        nothing is written.
      seed: of all choices that are drawn.
      clock: returns seconds.
      prices: what rounds and updates take on another device. The decider then counts these seconds,
        and not those of the clock.
      turns: who else uses the device that this learns on.
      identity: of the target and the drafter, see `identify_weights` (None: those of `params`).

    Raises:
      TypeError, ValueError: unknown decider or drafter, a drafter without weights, a seed that is
        none, or a folder with versions of another target, drafter or kind of decider.
    """

    # Tells weights apart, for events.
    digest: Callable[[Any], str] = staticmethod(hash_weights)

    @under_own_settings
    def __init__(
        self,
        params: Params,
        decider: str | Decider = "bandit-paired",
        *,
        drafter: str | None = None,
        options: AdaptOptions | None = None,
        folder: str | Path | None = None,
        seed: int = 0,
        clock: Callable[[], float] = time.perf_counter,
        prices: Prices | None = None,
        turns: Turns | None = None,
        identity: Mapping[str, str] | None = None,
    ):
        self.drafter = check_drafter(params, drafter)
        self.options, self.clock = options or AdaptOptions(), clock
        # Where others decode on another device, training takes nothing from them.
        self._meter = Meter(prices, free=turns is not None and not turns.shared)
        self.turns = turns or OwnDevice()
        self.seed = check_seed(seed) % 2**64  # NumPy takes no negative one
        self.decider = make_decider(decider, self.options.room)
        self.state = self.decider.init()
        self.trainer = make_trainer(params, self.drafter, self.options.learner)
        self.trainer.turns = self.turns
        # A copy of its own, which publications overwrite.
        given = copy_drafter(params, self.drafter), self.drafter, self.trainer
        self._served = Served(*given, self.options.versions, folder, identity)
        depths = min(self.options.shape.depths, self.trainer.learner.drafter.depth)
        self.shape = dataclasses.replace(self.options.shape, depths=depths)
        if self.decider.rejected_only:
            self.shape = self.shape.all_rejected()
        self.buffers = Buffers(self.options.segments)
        self.queries = 0
        self.events: MutableSequence[Event] = []
        self._rehearsed: set[str] = set()
        self._firsts: dict[int, int] = {}  # {query: number of its first segment}
        self._trained = 0  # number of the first segment that was not trained on
        self._first_prices: Mapping[str, float] = {}  # of updates, once they are known
        self.gathers = self.decider.learns  # whether evidence of the next query is wanted
        self.updating = False  # whether an update is being made
        resumed = self._served.resume(self.state)
        if resumed is not None:
            self.queries, self.state = resumed

    @property
    def params(self) -> Params:
        """The parameters that decode now."""
        return self._served.params

    @property
    def version(self) -> int:
        """The version of the drafter that decodes now; 0 is the one that was given."""
        return self._served.version

    @property
    def serving(self) -> Any:
        """The drafter's weights that decode now."""
        return self._served.weights

    @under_own_settings
    def close(self) -> None:
        """Forget the evidence and release the files."""
        self.buffers = Buffers(self.options.segments)
        self._served.close()

    def warm_up(self) -> None:
        """Compile what every publication runs, and change nothing."""
        self._served.serve_again()
        bool(is_finite(self.trainer.train.theta))
        self.digest(self.serving)

    def publishes(self, call: Callable[[Any], None]) -> None:
        """Call a function with the weights of each version that is published from now on."""
        self._served.published = call

    def learn(self, decoded: Decoded) -> None:
        """Gather a query's evidence, ask the decider and do what it says."""
        began, before = self.clock(), self.trainer.work
        numbers = self.buffers.add(decoded.segments) if self.gathers else []
        if numbers and (self.decider.reads_error or self.decider.gated):
            self.rehearse("test", lambda: self.trainer.rehearse_test(self.buffers.ring))
        query = self._describe(numbers, decoded)
        first_prices = self._price_updates(query)
        gathered = self.clock() - began
        work = self.trainer.work - before
        counted = self._meter.count_query(query.rounds, decoded.seconds, gathered, work)
        query = query._replace(seconds=counted, prices=first_prices)
        self.state, decision = self.decider.decide(self.state, query)
        self.gathers = self.decider.learns and decision.gather
        event = {
            "query": self.queries,
            "domain": query.domain,
            "tokens": query.tokens,
            "rounds": query.rounds,
            "positions": query.positions,
            "error": query.error,
            "decode_seconds": decoded.seconds,
            "evidence_seconds": gathered,
            **dataclasses.asdict(work),
            "decision": list(decision),
            "restored": decision.restore,
        }
        self.events.append(event)
        known = {query: at for query, at in self._firsts.items() if at >= self.buffers.oldest}
        self._firsts = known | {self.queries: self.buffers.written - len(numbers)}
        self.queries += 1
        self._act(decision, numbers, event)

    def _describe(self, numbers: list[int], decoded: Decoded) -> Query:
        """Tell the decider of a query whose segments have these numbers, but not what it took."""
        entries = np.array(numbers, np.int64) % self.options.segments
        error, positions = 0.0, 0
        if numbers:
            positions = int(np.asarray(self.buffers.ring.reject)[entries].sum())
            if self.decider.reads_error:
                error = self.trainer.error(self.buffers.ring, entries)
        return Query(
            self.queries,
            decoded.domain,
            decoded.tokens,
            decoded.rounds,
            0.0,
            error,
            positions,
            self.buffers.filled,
            self.buffers.count(numbers),
            tuple(np.random.default_rng([self.seed, self.queries, 1]).random(3).tolist()),
            version=decoded.version,
        )

    def _act(self, decision: Decision, numbers: list[int], event: Event) -> None:
        """Do what the decider says, and add it to the event."""
        began = self.clock()
        if decision.restore is not None:
            self._served.take_back(decision.restore)
            self._served.serve(self.queries, self.state)
        if decision.since is not None:
            # Of queries before a restart there is no evidence.
            self.buffers.forget(self._firsts.get(decision.since, 0))
        if decision.judge:
            self._elect(decision, event)
        self.buffers.keep(decision.keep, numbers)
        chosen = [] if decision.train == SKIP else self.buffers.take(decision.train)
        if len(chosen) and self.decider.recent is not None:
            chosen = self.buffers.newest(self.decider.recent)
        if len(chosen):
            self.updating = True
            self._update(decision.train, chosen, event)
            self.updating = False
        seconds = self.clock() - began
        self._meter.count_all(seconds)
        event |= {"update_seconds": seconds, "version": self.version}
        if "update" in event or event["restored"] is not None:
            event["weights"] = self.digest(self.serving)

    def _elect(self, decision: Decision, event: Event) -> None:
        """Compare versions on the evidence of a text, and let the elected one decode."""
        before, first = self.trainer.work, self._firsts.get(decision.judge_since, 0)
        chosen = self.buffers.newest(self.options.tested, first)
        found = self._served.versions.load(decision.judge, self.version, self.trainer.start)
        if not found or not len(chosen):
            return
        trained = max(self.buffers.oldest, first) < self._trained
        flips = self.trainer.compare(found, self.buffers.ring, chosen, trained)
        self.state, elected = self.decider.elect(self.state, flips)
        work = self.trainer.work - before
        judged = {version: each._asdict() for version, each in flips.items()}
        loads = sum(version > 0 for version in found)  # the first one is on the device
        event |= {"judged": judged, "restored": elected, "loads": loads}
        _add_work(event, work)
        self._meter.count_comparison(work, loads)
        if elected is not None:
            self._served.choose(elected, found[elected])
            self._served.serve(self.queries, self.state)

    def _update(self, action: str, chosen: np.ndarray, event: Event) -> None:
        """Train on entries of the ring, tell the decider, and publish what is good."""
        given = action, self.buffers.ring, chosen, self.decider
        self.rehearse(action, lambda: self.trainer.rehearse(*given))
        began, compiled, before = self.clock(), compile_seconds(), self.trainer.work
        tested = np.union1d(chosen, self.buffers.newest(self.options.tested))
        good, flips, count = self.trainer.update(
            action, self.buffers.ring, chosen, tested, self.decider
        )
        self._trained = self.buffers.written
        if good and not is_finite(self.trainer.train.theta):
            good = False
            self._served.undo()
        if good:
            self._served.add()
        version, work = self.version if good else None, self.trainer.work - before
        steps = Steps(action, count, self.trainer.redrafts(action), self.decider.anchored)
        # Only the first update of an action compiles; that says nothing of what the next ones cost.
        measured = self.clock() - began - (compile_seconds() - compiled)
        seconds = self._meter.count_update(measured, steps, work)
        update = UpdateResult(action, seconds, *flips, version)
        event |= {"update": update._asdict(), "segments": len(chosen), "steps": count}
        event |= {"redrafts": steps.redrafts, "anchored": steps.anchored}
        _add_work(event, work)
        # Before the version is written: a session that is resumed there knows what became of it.
        self.state = self.decider.observe(self.state, update)
        if good:
            self._served.serve(self.queries, self.state)

    def rehearse(self, what: str, work: Callable[[], None]) -> None:
        """Compile what is run for the first time, while others use a shared device."""
        if self.turns.shared and what not in self._rehearsed:
            self._rehearsed.add(what)
            with self.turns.released():
                work()

    def _price_updates(self, query: Query) -> Mapping[str, float]:
        """Return what first updates take, once there is a batch to tell by, or one could be made."""
        steps, room = self.decider.steps, self.decider.room or self.options.room
        enough = self.buffers.written >= self.options.learner.batch
        enough |= any(is_full(query, action, room) for action in room)
        if self._meter.free:
            return {}
        if steps and enough and not self._first_prices and self.buffers.ring is not None:
            given = self.trainer, self.buffers.ring, self.options.tested, steps, self._meter.prices
            self._first_prices = price_updates(*given)
        return self._first_prices


def _add_work(event: Event, work: Work) -> None:
    for name, count in dataclasses.asdict(work).items():
        event[name] += count
