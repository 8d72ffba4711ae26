"""Drive an engine with an open or a closed loop of requests, in one thread."""

from __future__ import annotations

import random
import time
from collections.abc import Sequence

from jaxspec.bench.endpoint.load import Load, Measured
from jaxspec.bench.endpoint.request import Asked
from jaxspec.serve import Engine, QueueFull, ServeRequest


def drive(
    engine: Engine,
    requests: Sequence[ServeRequest],
    load: Load,
    texts: list[list[int]] | None = None,
) -> Measured:
    """Send a load to an engine; requests take turns if the load has more.

    A refused request counts as an error, and so does one that the engine gives up. Times are those
    of the engine's updates.

    Args:
      texts: gets the tokens of the requests, in the order in which they are sent.
    """
    due = _due_times(load)
    began = time.monotonic()
    running: dict[int, tuple[float, list[float], int]] = {}
    order: dict[int, int] = {}
    asked: list[Asked] = []
    sent = 0
    while sent < load.requests or not engine.idle:
        while sent < load.requests and _may_send(load, due, began, sent, len(running)):
            # A request counts from when it was due, however late the loop comes to it.
            at = began + due[sent] if load.rate is not None else time.monotonic()
            try:
                id = engine.submit(requests[sent % len(requests)])
                running[id], order[id] = (at, [], 0), sent
            except QueueFull:
                asked.append(Asked(429, at, error="status 429"))
            sent += 1
        if engine.idle:
            if sent < load.requests:
                time.sleep(max(0.0, began + due[sent] - time.monotonic()))
            continue
        for update in engine.visit():
            at, arrivals, tokens = running[update.id]
            if texts is not None:
                texts[order[update.id]] += update.tokens
            if update.tokens:
                arrivals.append(time.monotonic() - at)
            running[update.id] = at, arrivals, tokens + len(update.tokens)
            if update.finish is not None:
                at, arrivals, tokens = running.pop(update.id)
                error = None if update.finish in ("stop", "length") else update.finish
                asked.append(Asked(200, at, tuple(arrivals), tokens, error))
    return Measured(sorted(asked, key=lambda one: one.began), time.monotonic() - began)


def _due_times(load: Load) -> list[float]:
    """Return when each request is sent, in seconds; all at once in a closed loop."""
    if load.rate is None:
        return [0.0] * load.requests
    gaps, at, times = random.Random(load.seed), 0.0, []
    for _ in range(load.requests):
        at += gaps.expovariate(load.rate)
        times.append(at)
    return times


def _may_send(load: Load, due: list[float], began: float, sent: int, running: int) -> bool:
    if load.rate is None:
        return running < load.clients
    return time.monotonic() - began >= due[sent]
