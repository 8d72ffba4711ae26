"""A thread in which a drafter learns from what an engine served.

It sees each text as a query, and does with it what a session does. With a device of its own, it
works while the engine decodes (SpecBlock, figure 4); else it and the engine take turns. A version
is written to the folder before the engine gets it, which writes it into the drafter's buffers
between two visits.
"""

from __future__ import annotations

import atexit
import collections
import logging
import queue
import threading
import traceback
import weakref
from typing import Any

import jax
import numpy as np

from jaxspec.adapt.adaptation import Adaptation, Decoded
from jaxspec.adapt.learning.cut import Text, cut_text
from jaxspec.adapt.learning.evidence import Buffers
from jaxspec.adapt.publish import publish, sum_bits
from jaxspec.adapt.served import with_weights
from jaxspec.adapt.serving.placement import copy_to
from jaxspec.adapt.turns import Ended, OwnDevice, SharedDevice
from jaxspec.core.params import Params
from jaxspec.core.runtime.jax_settings import own_settings
from jaxspec.serve.adapts import ServedText
from jaxspec.targets.layouts.registry import like, strip

log = logging.getLogger("jaxspec.serve")

# Texts that may wait with their evidence, and at all. Newer ones are not learned from.
BACKLOG, MOST_WAITING = 16, 256
# Events that are kept, for those who look.
_EVENTS = 256
# Seconds in which training ends: a pass, or the compilation of one.
_PATIENCE = 20.0


def _close_at_exit(student: weakref.ref[Student]) -> None:
    """End a thread before the interpreter does: JAX would clear its clients under it."""
    found = student()
    if found is not None:
        found.close()


class Student:
    """Learns in a thread; see `jaxspec.serve.adapts.Adapts`.

    Args:
      adaptation: on the device to learn on.
      turns: who uses that device; those of the adaptation.
      device: to learn on; None: the engine's.
      places: of the weights in the engine, which may be overwritten.
    """

    def __init__(
        self,
        adaptation: Adaptation,
        turns: OwnDevice | SharedDevice,
        device: Any,
        places: Any,
    ):
        self.adaptation, self._turns, self._device = adaptation, turns, device
        self.drafter, self.rows = adaptation.drafter, adaptation.options.rows
        self.version = adaptation.version
        adaptation.digest, adaptation.events = sum_bits, collections.deque(maxlen=_EVENTS)
        adaptation.warm_up()
        adaptation.publishes(self._hand_over)
        self._places = places
        self._texts: queue.SimpleQueue[ServedText | None] = queue.SimpleQueue()
        self._lock = threading.Lock()
        self._published: tuple[Any, int] | None = None  # which the engine has yet to take
        self._thread = threading.Thread(target=self._run, name="adaptation", daemon=True)
        self._counts = collections.Counter[str]()
        self._seconds = 0.0
        self.failure: str | None = None

    @property
    def wants(self) -> bool:
        """Whether evidence of the next text is wanted."""
        room = self._texts.qsize() < BACKLOG
        return room and self.adaptation.gathers and self.failure is None

    def start(self) -> None:
        """Begin to learn."""
        if not self._thread.is_alive():
            atexit.register(_close_at_exit, weakref.ref(self))
            where = "the device that serves" if self._device is None else self._device
            log.info("%s learns on %s, from version %d", self.drafter, where, self.version)
            self._thread.start()

    def begin_visit(self) -> None:
        """Give the device to the engine, after at most one pass."""
        self._turns.begin_visit()

    def end_visit(self) -> None:
        """Take the device back."""
        self._turns.end_visit()

    def publish(self, params: Params) -> Params | None:
        """Write the newest version into the drafter's buffers; None if it decodes already."""
        with self._lock:
            published, self._published = self._published, None
        if published is None:
            return None
        weights, version = published
        try:
            params = overwrite(params, self.drafter, weights)
        except Exception as error:
            self._fail(error)
            return None
        self.version = version
        log.info("version %d of %s decodes", version, self.drafter)
        return params

    def hear(self, text: ServedText) -> None:
        """Learn from a text, after those before it."""
        waiting = self._texts.qsize()
        if self.failure is not None or waiting >= MOST_WAITING:
            self._counts["left_out"] += 1
            return
        if text.evidence is None:
            text = text._replace(prompt=[], tokens=[])  # nothing is kept that nobody reads
        self._texts.put(text)

    def counters(self) -> dict[str, Any]:
        """Return figures."""
        names = ("queries", "updates", "published", "refused", "restored", "left_out", "failures")
        found = {name: self._counts[name] for name in names}
        on = self.failure is None
        own = {"on": on, "version": self.version, "updating": on and self.adaptation.updating}
        return own | found | {"waiting": self._texts.qsize(), "seconds": self._seconds}

    def wait(self) -> None:
        """Wait until all texts so far are learned from, or learning has failed."""
        done = threading.Event()
        self._texts.put(done)
        while self._thread.is_alive() and not done.wait(0.05):
            pass

    def stop(self) -> None:
        """Let the thread end after the pass that runs."""
        self._turns.close()
        self._texts.put(None)

    def close(self) -> None:
        """End after the pass that runs, and forget all texts."""
        self.stop()
        if self._thread.is_alive():
            self._thread.join(_PATIENCE)
        if not self._thread.is_alive():
            self.adaptation.close()

    def _run(self) -> None:
        """Learn from one text after the other. The thread runs this."""
        with own_settings(), jax.default_device(self._device):
            while (text := self._texts.get()) is not None:
                if isinstance(text, threading.Event):
                    text.set()
                    continue
                try:
                    self._turns.begin()
                    self._learn(text)
                except Ended:
                    return
                except Exception as error:
                    self._fail(error)
                    return
                finally:
                    self._turns.end()

    def _learn(self, text: ServedText) -> None:
        """Learn from a text. This has the device, but for the pauses that others may use."""
        adaptation, began = self.adaptation, self._turns.clock()
        drafted = text.drafted
        decoded = Decoded(
            # Trees have fewer rows where more texts share a round, so only texts of about the same
            # load are compared.
            f"load {2 ** max(round(np.log2(text.load)), 0)}",
            int(text.counts[drafted].sum()),
            int(drafted.sum()),
            text.seconds,
            text.version,
            self._cut(text),
        )
        if text.evidence is not None:
            size = adaptation.options.segments
            adaptation.rehearse("cut", lambda: Buffers(size).add(self._cut(text)))
        adaptation.learn(decoded)
        event, counts = adaptation.events[-1], self._counts
        counts["queries"] += 1
        counts["restored"] += event["restored"] is not None
        if "update" in event:
            counts["updates"] += 1
            good = event["update"]["published"] is not None
            counts["published" if good else "refused"] += 1
        self._seconds += self._turns.clock() - began

    def _cut(self, text: ServedText) -> Any:
        if text.evidence is None:
            return ()
        evidence = text.evidence
        if self._device is not None:
            evidence = jax.device_put(evidence, self._device)
        adaptation, tokens = self.adaptation, np.array([*text.prompt, *text.tokens])
        known = Text(
            tokens, len(text.prompt) - 1, text.counts, text.rejected, text.chunk, text.first
        )
        config, target = adaptation.params.spec.target, adaptation.params.target
        random = np.random.default_rng([adaptation.seed, adaptation.queries])
        return cut_text(config, target, evidence, 0, known, adaptation.shape, random)

    def _hand_over(self, weights: Any) -> None:
        """Let the engine take a version, which is on disk if there is a folder."""
        copied = copy_to(self._places, weights)
        with self._lock:
            self._published = copied, self.adaptation.version

    def _fail(self, error: Exception) -> None:
        """Learn no more. The engine goes on with the version that it has."""
        self.failure = describe(error)
        self._counts["failures"] += 1
        log.error("adaptation is off, and serving goes on: %s", self.failure)


def overwrite(params: Params, drafter: str, weights: Any) -> Params:
    """Write weights into the buffers of a drafter, which are donated; copies of them are made anew."""
    given = params.drafter(drafter)
    written = publish(strip(given)["params"], weights)
    bare = with_weights(params.replace(drafters={drafter: strip(given)}), drafter, written)
    made = like(bare.drafter(drafter), given)
    return params.replace(drafters={**params.drafters, drafter: made})


def describe(error: Exception) -> str:
    """Describe an error in one line by its type and place.

    Its message may quote a text, so only those of JAX and of files are given.
    """
    last = traceback.extract_tb(error.__traceback__)[-1]
    told = isinstance(error, OSError) or type(error).__module__.split(".")[0] in ("jax", "jaxlib")
    message = f": {str(error).splitlines()[0]}" if told and str(error) else ""
    return f"{type(error).__name__}{message} ({last.filename.rpartition('/')[2]}:{last.lineno})"
