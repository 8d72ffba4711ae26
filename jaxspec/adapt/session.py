"""A session: decode calls whose drafter learns from what it got wrong.

The text stays that of the target, whatever is published. Evidence holds text and stays in memory;
a call with `adapt=False` leaves none.
"""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.adapt.actions import SKIP
from jaxspec.adapt.deciders import Decider, Decision, Query, UpdateResult, is_full, make_decider
from jaxspec.adapt.learning.cut import cut_segments
from jaxspec.adapt.learning.evidence import Buffers
from jaxspec.adapt.options import AdaptOptions
from jaxspec.adapt.prices import Meter, Prices, price_updates
from jaxspec.adapt.publish import hash_weights
from jaxspec.adapt.served import Served, check_drafter, copy_drafter
from jaxspec.adapt.updates import is_finite, make_trainer
from jaxspec.call.arguments import check_seed
from jaxspec.call.options import Speculation
from jaxspec.call.output import Output
from jaxspec.call.run import run_session
from jaxspec.call.session import prepare
from jaxspec.call.text.token_ids import Prompt, Prompts, is_batch
from jaxspec.core.params import Params
from jaxspec.core.runtime.compilations import compile_seconds
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.tuner.tuner import tune

# What a session shows after every query: plain values, no text.
Event = dict[str, Any]


class AdaptiveSession:
    """Decode with a drafter that is updated while it serves.

    Args:
      params: from `jaxspec.load`; it is not changed.
      decider: a name of `jaxspec.adapt.deciders.DECIDERS`, or a `Decider`.
      drafter: the drafter to adapt (None: the default one).
      options: see `AdaptOptions`.
      folder: where published versions are kept; a session that finds some there goes on with the
        newest. None: nothing is written.
      seed: of all choices that are drawn.
      clock: returns seconds.
      prices: what rounds and updates take on another device. The decider then counts these seconds,
        and not those of the clock.

    Raises:
      TypeError, ValueError: unknown decider or drafter, a drafter without weights, a seed that is
        none, or a folder with versions of another target, drafter or kind of decider.
    """

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
    ):
        self.drafter = check_drafter(params, drafter)
        self.options, self.clock, self._meter = options or AdaptOptions(), clock, Meter(prices)
        self.seed = check_seed(seed) % 2**64  # NumPy takes no negative one
        self.decider = make_decider(decider, self.options.room)
        self.state = self.decider.init()
        self.trainer = make_trainer(params, self.drafter, self.options.learner)
        # A copy of its own, which publications overwrite.
        given = copy_drafter(params, self.drafter), self.drafter, self.trainer
        self._served = Served(*given, self.options.versions, folder)
        depths = min(self.options.shape.depths, self.trainer.learner.drafter.depth)
        self.shape = dataclasses.replace(self.options.shape, depths=depths)
        if self.decider.rejected_only:
            self.shape = self.shape.all_rejected()
        self.buffers = Buffers(self.options.segments)
        self.queries, self.events = 0, []
        self._firsts: dict[int, int] = {}  # {query: number of its first segment}
        self._trained = 0  # number of the first segment that was not trained on
        self._first_prices: Mapping[str, float] = {}  # of updates, once they are known
        self._gathers = self.decider.learns  # whether evidence of the next query is wanted
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
    def decode(
        self, prompt: Prompt | Prompts, *, domain: str = "", adapt: bool = True, **options: Any
    ) -> Output | list[Output]:
        """Generate text as `jaxspec.decode` does, and learn from it.

        Args:
          domain: what the prompts are about; windows are compared domain by domain.
          adapt: whether this call may be learned from. Without it, nothing of it is gathered.
          options: of `jaxspec.decode`, without `drafter` and `trace`.

        Raises:
          TypeError, ValueError: see `jaxspec.decode`.
        """
        given = options.get("speculation") or Speculation()
        if given.lookup is None:  # copied tokens are no evidence of the drafter
            options["speculation"] = dataclasses.replace(given, lookup=False)
        call, hooks = tune(prepare(self.params, prompt, drafter=self.drafter, **options))
        # All calls of a session run one program, so that a rule that rests compiles no other.
        rows = self.options.rows if adapt and self.decider.learns else 0
        config = dataclasses.replace(call.config, evidence=rows)
        call = dataclasses.replace(call, config=config)
        began = self.clock()
        outputs, state = run_session(call, hooks=hooks)
        seconds = self.clock() - began
        if adapt:
            lengths = zip(call.tokens, call.lengths, strict=True)
            self._learn(state, [ids[:n] for ids, n in lengths], outputs, domain, seconds)
        return outputs if is_batch(prompt) else outputs[0]

    @under_own_settings
    def close(self) -> None:
        """Forget the evidence and release the files."""
        self.buffers = Buffers(self.options.segments)
        self._served.close()

    def _learn(
        self, state: Any, prompts: list[Any], outputs: list[Output], domain: str, seconds: float
    ) -> None:
        """Gather the evidence of a call, ask the decider and do what it says."""
        began, passes = self.clock(), self.trainer.passes
        seed = (self.seed, self.queries)
        numbers = []
        if self._gathers:
            numbers = self.buffers.add(cut_segments(self.params, state, prompts, self.shape, seed))
        query = self._describe(numbers, outputs, domain)
        first_prices = self._price_updates(query)
        gathered = self.clock() - began
        passes = self.trainer.passes - passes
        counted = self._meter.count_query(query.rounds, seconds + gathered, passes)
        query = query._replace(seconds=counted, prices=first_prices, version=self.version)
        self.state, decision = self.decider.decide(self.state, query)
        self._gathers = self.decider.learns and decision.gather
        event = {
            "query": self.queries,
            "domain": domain,
            "tokens": query.tokens,
            "rounds": query.rounds,
            "positions": query.positions,
            "error": query.error,
            "decode_seconds": seconds,
            "evidence_seconds": gathered,
            "passes": passes,
            "decision": list(decision),
            "restored": decision.restore,
        }
        self.events.append(event)
        known = {query: at for query, at in self._firsts.items() if at >= self.buffers.oldest}
        self._firsts = known | {self.queries: self.buffers.written - len(numbers)}
        self.queries += 1
        self._act(decision, numbers, event)

    def _describe(self, numbers: list[int], outputs: list[Output], domain: str) -> Query:
        """Tell the decider of a call whose segments have these numbers, but not what it took."""
        entries = np.array(numbers, np.int64) % self.options.segments
        error, positions = 0.0, 0
        if numbers:
            positions = int(np.asarray(self.buffers.ring.reject)[entries].sum())
            if self.decider.reads_error:
                error = self.trainer.error(self.buffers.ring, entries)
        return Query(
            self.queries,
            domain,
            sum(out.stats.emitted - 1 for out in outputs),
            sum(out.stats.rounds for out in outputs),
            0.0,
            error,
            positions,
            self.buffers.filled,
            self.buffers.count(numbers),
            tuple(np.random.default_rng([self.seed, self.queries, 1]).random(3).tolist()),
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
            self._update(decision.train, chosen, event)
        seconds = self.clock() - began
        self._meter.count_all(seconds)
        event |= {"update_seconds": seconds, "version": self.version}
        if "update" in event or event["restored"] is not None:
            event["weights"] = hash_weights(self.serving)

    def _elect(self, decision: Decision, event: Event) -> None:
        """Compare versions on the evidence of a text, and let the elected one decode."""
        passes, first = self.trainer.passes, self._firsts.get(decision.judge_since, 0)
        chosen = self.buffers.newest(self.options.tested, first)
        found = self._served.versions.load(decision.judge, self.version, self.trainer.start)
        if not found or not len(chosen):
            return
        trained = max(self.buffers.oldest, first) < self._trained
        flips = self.trainer.compare(found, self.buffers.ring, chosen, trained)
        self.state, elected = self.decider.elect(self.state, flips)
        passes = self.trainer.passes - passes
        judged = {version: each._asdict() for version, each in flips.items()}
        loads = sum(version > 0 for version in found)  # the first one is on the device
        event |= {"judged": judged, "restored": elected, "loads": loads}
        event["passes"] += passes
        self._meter.count_comparison(passes, loads)
        if elected is not None:
            self._served.choose(elected, found[elected])
            self._served.serve(self.queries, self.state)

    def _update(self, action: str, chosen: np.ndarray, event: Event) -> None:
        """Train on entries of the ring, tell the decider, and publish what is good."""
        began, compiled, passes = self.clock(), compile_seconds(), self.trainer.passes
        tested = np.union1d(chosen, self.buffers.newest(self.options.tested))
        good, flips, steps = self.trainer.update(
            action, self.buffers.ring, chosen, tested, self.decider
        )
        self._trained = self.buffers.written
        if good and not is_finite(self.trainer.train.theta):
            good = False
            self._served.undo()
        if good:
            self._served.add()
        version, passes = self.version if good else None, self.trainer.passes - passes
        # Only the first update of an action compiles; that says nothing of what the next ones cost.
        measured = self.clock() - began - (compile_seconds() - compiled)
        seconds = self._meter.count_update(action, measured, steps, passes)
        update = UpdateResult(action, seconds, *flips, version)
        event |= {"update": update._asdict(), "segments": len(chosen), "steps": steps}
        event["passes"] += passes
        # Before the version is written: a session that is resumed there knows what became of it.
        self.state = self.decider.observe(self.state, update)
        if good:
            self._served.serve(self.queries, self.state)

    def _price_updates(self, query: Query) -> Mapping[str, float]:
        """Return what first updates take, once there is a batch to tell by, or one could be made."""
        steps, room = self.decider.steps, self.decider.room or self.options.room
        enough = self.buffers.written >= self.options.learner.batch
        enough |= any(is_full(query, action, room) for action in room)
        if steps and enough and not self._first_prices and self.buffers.ring is not None:
            given = self.trainer, self.buffers.ring, self.options.tested, steps, self._meter.prices
            self._first_prices = price_updates(*given)
        return self._first_prices
