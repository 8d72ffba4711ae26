"""Two kinds of load: an open loop, whose requests come as they like, and a closed one of clients."""

from __future__ import annotations

import asyncio
import itertools
import random
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from jaxspec.bench.endpoint.request import Asked, ask, make_body

# Connections that the client holds open at most; more requests than that would measure the client.
MOST_CONNECTIONS = 1024


class Load(NamedTuple):
    """A load.

    Attributes:
      requests: how many are sent.
      rate: requests a second of an open loop, with exponential gaps; None for a closed loop.
      clients: of a closed loop: each sends its next request when it has its answer.
      seed: of the gaps.
    """

    requests: int
    rate: float | None = None
    clients: int = 1
    seed: int = 0

    def describe(self) -> str:
        """Describe the load in a few words."""
        return f"{self.clients} clients" if self.rate is None else f"{self.rate:g} requests/s"


class Measured(NamedTuple):
    """What a load gave.

    Attributes:
      asked: requests in the order in which they were sent.
      seconds: from the first request to the last answer.
    """

    asked: list[Asked]
    seconds: float


async def run_load(
    url: str,
    prompts: Sequence[Any],
    load: Load,
    *,
    key: str | None = None,
    timeout: float = 600.0,
    **settings: Any,
) -> Measured:
    """Send a load to an endpoint.

    Args:
      url: of the endpoint, up to /v1.
      prompts: texts, token ids or messages, which take turns.
      settings: parameters of every request.
    """
    import httpx

    headers = {} if key is None else {"Authorization": f"Bearer {key}"}
    limits = httpx.Limits(max_connections=MOST_CONNECTIONS)
    async with httpx.AsyncClient(
        base_url=url.rstrip("/") + "/", headers=headers, limits=limits, timeout=timeout
    ) as client:
        bodies = itertools.cycle([make_body(one, **settings) for one in prompts])
        chosen = [next(bodies) for _ in range(load.requests)]
        began = time.monotonic()
        if load.rate is None:
            asked = await _closed(client, chosen, load.clients)
        else:
            asked = await _open(client, chosen, load.rate, load.seed)
        seconds = time.monotonic() - began
    return Measured(sorted(asked, key=lambda one: one.began), seconds)


async def _closed(client: Any, bodies: Sequence[tuple[str, dict]], clients: int) -> list[Asked]:
    left, asked = iter(bodies), []

    async def work() -> None:
        for path, body in left:
            asked.append(await ask(client, path, body))

    await asyncio.gather(*(work() for _ in range(clients)))
    return asked


async def _open(
    client: Any, bodies: Sequence[tuple[str, dict]], rate: float, seed: int
) -> list[Asked]:
    gaps, tasks = random.Random(seed), []
    due = time.monotonic()
    for path, body in bodies:
        due += gaps.expovariate(rate)
        # A late request does not delay those after it: the next gap counts from when it was due.
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        tasks.append(asyncio.create_task(ask(client, path, body)))
    return await asyncio.gather(*tasks)
