"""Hours of mixed traffic: memory stays flat and no slot is lost.

JAXSPEC_SOAK=1800 python -m pytest -m slow tests/serve/http/test_soak.py -s
"""

import asyncio
import collections
import os
import random
import time
from pathlib import Path

import pytest
from fake_engine import ByteTokenizer, FakeEngine, expected_tokens

from jaxspec.serve.requests import ServeRequest

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")

SECONDS = float(os.environ.get("JAXSPEC_SOAK", 60))
CLIENTS = 24
MOST_GROWTH = 16  # MiB from the end of the first third to the end


def memory() -> float:
    """MiB that this process, with the server in it, has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


async def use(client, pick: random.Random, end: float, seen: collections.Counter) -> None:
    """Send requests of all kinds until the end, and check what comes back."""
    while time.monotonic() < end:
        kind = pick.choice(("whole", "stream", "leave", "bad", "key"))
        count = pick.choice((1, 8, 60))
        body = {"prompt": f"soak {pick.random()}", "max_tokens": count, "temperature": 0}
        if kind == "bad":
            answer = await client.post("/v1/completions", json=body | {"best_of": 4})
            assert answer.status_code == 400
        elif kind == "key":
            answer = await client.get("/v1/models", headers={"Authorization": "Bearer x"})
            assert answer.status_code == 200
        elif kind == "whole":
            answer = await client.post("/v1/completions", json=body)
            assert answer.status_code in (200, 429)
            if answer.status_code == 200:
                tokens = expected_tokens(ServeRequest(tuple(body["prompt"].encode()), count))
                assert answer.json()["choices"][0]["text"] == ByteTokenizer().decode(tokens)
        else:
            async with client.stream(
                "POST", "/v1/completions", json=body | {"stream": True}
            ) as answer:
                lines = [line async for line in cut(answer.aiter_lines(), kind, pick)]
            if kind == "stream" and answer.status_code == 200:
                assert "data: [DONE]" in lines
        seen[kind, answer.status_code] += 1
        await asyncio.sleep(pick.random() * 0.05)


async def cut(lines, kind: str, pick: random.Random):
    """Pass lines on; of one who leaves only the first few."""
    left = pick.randrange(6) if kind == "leave" else -1
    async for line in lines:
        if left == 0:
            return
        left -= 1
        yield line


async def soak(url: str, seconds: float) -> collections.Counter:
    end, seen = time.monotonic() + seconds, collections.Counter()
    limits = httpx.Limits(max_connections=2 * CLIENTS, max_keepalive_connections=CLIENTS)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await asyncio.gather(
            *(use(client, random.Random(number), end, seen) for number in range(CLIENTS))
        )
    return seen


@pytest.mark.slow
def test_soak():
    engine = FakeEngine(slots=4, queue=12, seconds=0.002)
    with http_server.running(engine) as server:
        asyncio.run(soak(server.url, SECONDS / 3))
        before = memory()
        seen = asyncio.run(soak(server.url, 2 * SECONDS / 3))
        after = memory()
        http_server.wait_until(lambda: engine.idle)
        assert not server.service.driver.busy
        assert engine.ended == engine.submitted
    print(f"{sum(seen.values())} requests: {dict(seen)}; {before:.0f} MiB, then {after:.0f} MiB")
    assert after - before < MOST_GROWTH
    assert seen["whole", 200] and seen["leave", 200] and seen["bad", 400]
