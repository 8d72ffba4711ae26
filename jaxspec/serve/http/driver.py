"""One thread drives the engine; what it makes reaches requests on the event loop."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import threading
import time
import traceback
from collections.abc import Callable, Iterable
from typing import Any

from jaxspec.serve.engine import Engine
from jaxspec.serve.http.completions.generation import Generation
from jaxspec.serve.http.errors import ApiError
from jaxspec.serve.http.metrics import Metrics
from jaxspec.serve.requests import InvalidRequest, QueueFull, ServeRequest, Update

log = logging.getLogger("jaxspec.serve")

# Seconds between looks at an idle engine that has yet to learn what rounds cost.
_SETTLES = 0.2

DEAD = "The engine failed, and this server is about to exit."

# Parameters by the engine's fields, where the names differ. Stop strings are checked before.
_NAMES = {
    "tokens": "prompt",
    "max_new_tokens": "max_tokens",
    "stop": "stop_token_ids",
}


@dataclasses.dataclass
class _Place:
    """Where the updates of an engine request go: choice `index` of `generation`."""

    generation: Generation
    index: int


class Driver:
    """Runs an engine in a thread of its own.

    All methods but the thread's own belong to the event loop.

    Attributes:
      warm: whether the engine takes requests. Some of its programs may still be `missing`.
      failure: why the engine is dead, None while it lives.
    """

    def __init__(
        self,
        engine: Engine,
        metrics: Metrics,
        *,
        visit_timeout: float,
        on_failure: Callable[[], None],
    ):
        """Make it.

        Args:
          visit_timeout: seconds after which a visit to the device counts as hanging.
          on_failure: called once, on the event loop, when the engine is dead.
        """
        self.warm = False
        self.failure: str | None = None
        self._engine, self._metrics = engine, metrics
        self._visit_timeout, self._on_failure = visit_timeout, on_failure
        self._places: dict[int, _Place] = {}
        self._wake, self._stopping = threading.Event(), False
        self._visiting_since: float | None = None
        self._thread = threading.Thread(target=self._run, name="engine", daemon=True)

    @property
    def missing(self) -> list[str]:
        """What is being compiled, in words."""
        return self._engine.missing

    @property
    def adaptation(self) -> dict[str, Any] | None:
        """Figures of a drafter that learns, None if none does."""
        return self._engine.counters().get("adaptation")

    @property
    def busy(self) -> bool:
        """Whether requests are waiting or running."""
        return bool(self._places)

    @property
    def stuck(self) -> bool:
        """Whether the thread has not ended: a visit hangs, or nobody waited for it."""
        return self._thread.is_alive()

    async def start(self) -> None:
        """Start the thread, which first warms the engine up, and the watch over it."""
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        self._watch = asyncio.create_task(self._watch_visits())

    async def stop(self) -> None:
        """End the thread after its visit, if that ends in time."""
        # Other processes may have to finish a visit before they hear of the end.
        seconds = 2.0 if self._engine.pulse is None else 10.0
        self._stopping = True
        self._wake.set()
        self._watch.cancel()
        await asyncio.to_thread(self._thread.join, seconds)

    def submit(self, requests: list[ServeRequest]) -> Generation:
        """Queue requests that are answered together.

        Raises:
          ApiError: the engine refuses one of them; then none is queued.
        """
        if self.failure is not None:
            raise ApiError(503, DEAD, "engine_dead")
        generation, ids = Generation(self, self._metrics, len(requests)), []
        try:
            for index, request in enumerate(requests):
                ids.append(self._engine.submit(request))
                # No update is lost: they arrive on this thread, which is here.
                self._places[ids[-1]] = _Place(generation, index)
        except (InvalidRequest, QueueFull) as error:
            self.cancel(ids)
            raise _refuse(error) from None
        finally:
            self._wake.set()
        generation.ids = ids
        return generation

    def cancel(self, ids: Iterable[int]) -> None:
        """End engine requests whose answers nobody wants; unknown ids change nothing."""
        for id in ids:
            if self._places.pop(id, None) is not None and self.failure is None:
                self._engine.cancel(id)
                self._metrics.count_end("abort")
        self._wake.set()

    def fail_all(self, error: ApiError) -> None:
        """End every request with an error."""
        places, ids = list(self._places.values()), list(self._places)
        self.cancel(ids)
        for place in places:
            place.generation.fail(error)

    def _run(self) -> None:
        """Warm up, then visit the device whenever there is work. The engine's thread runs this."""
        try:
            self._engine.warm_up(wait=False)
            self._tell(self._set_warm)
            while True:
                # Before the questions: what changes after them sets it again, and the wait ends.
                self._wake.clear()
                if self._stopping:
                    self._engine.close()
                    break
                if self._engine.idle:
                    # Programs may come that tell what rounds cost.
                    pulse = _SETTLES if self._engine.unsettled else self._engine.pulse
                    if self._wake.wait(pulse) or self._engine.settle() or pulse is _SETTLES:
                        continue
                self._visiting_since = time.monotonic()
                updates = self._engine.visit()
                self._visiting_since = None
                if updates:
                    self._tell(self._deliver, updates)
        except Exception as error:
            self._visiting_since = None
            log.error("the engine failed: %s", describe(error))
            self._tell(self._die, type(error).__name__)

    def _tell(self, method: Callable[..., None], *arguments: Any) -> None:
        """Call a method on the event loop, unless a signal has ended that already."""
        with contextlib.suppress(RuntimeError):
            self._loop.call_soon_threadsafe(method, *arguments)

    def _set_warm(self) -> None:
        self.warm = True
        later = ", ".join(self.missing)
        log.info("ready%s", f"; still compiling {later}" if later else "")

    def _deliver(self, updates: list[Update]) -> None:
        for update in updates:
            place = self._places.get(update.id)
            if place is None:
                continue
            if update.finish is not None:
                del self._places[update.id]
            place.generation.put(place.index, update)

    def _die(self, reason: str) -> None:
        if self.failure is None:
            self.failure = reason
            self.fail_all(ApiError(500, DEAD, "engine_dead"))
            self._on_failure()

    async def _watch_visits(self) -> None:
        """Declare the engine dead when a visit takes too long."""
        while self.failure is None:
            await asyncio.sleep(min(1.0, self._visit_timeout / 4))
            since = self._visiting_since
            if since is not None and time.monotonic() - since > self._visit_timeout:
                log.error("the engine failed: a visit took over %g s", self._visit_timeout)
                self._die("a visit to the device hangs")


def describe(error: BaseException) -> str:
    """Describe an error for the log by its type and place.

    Its message may quote a prompt, so only JAX's are given: they speak of programs and memory.
    """
    frames = "".join(traceback.format_tb(error.__traceback__))
    jax = type(error).__module__.split(".")[0] in ("jax", "jaxlib")
    return f"{type(error).__name__}{f': {error}' if jax else ''}\n{frames}"


def _refuse(error: InvalidRequest | QueueFull) -> ApiError:
    if isinstance(error, QueueFull):
        message = "The queue is full. Try again later."
        return ApiError(429, message, "queue_full", retry_after=error.retry_after)
    return ApiError(400, f"{error}.", "invalid_value", _NAMES.get(error.field, error.field))
