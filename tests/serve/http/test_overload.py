"""Ten times more requests than fit: refusals with Retry-After, no lost slot, and recovery."""

import asyncio
import collections

import pytest
from fake_engine import ByteTokenizer, FakeEngine, expected_tokens

from jaxspec.serve.requests import ServeRequest

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")

SLOTS, QUEUE = 4, 8


async def ask(client, number: int):
    body = {"prompt": f"request {number}", "max_tokens": 40, "seed": number}
    return await client.post("/v1/completions", json=body)


async def ask_all(url: str, count: int):
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(ask(client, number) for number in range(count)))


def test_overload():
    engine = FakeEngine(slots=SLOTS, queue=QUEUE, seconds=0.02)
    with http_server.running(engine) as server:
        answers = asyncio.run(ask_all(server.url, 10 * (SLOTS + QUEUE)))
        counts = collections.Counter(answer.status_code for answer in answers)
        assert set(counts) == {200, 429} and counts[200] >= SLOTS + QUEUE
        for number, answer in enumerate(answers):
            if answer.status_code == 429:
                assert int(answer.headers["Retry-After"]) >= 1
                assert answer.json()["error"]["type"] == "rate_limit_error"
            else:
                ids = tuple(f"request {number}".encode())
                alone = ServeRequest(ids, 40, temperature=1.0, seed=number)
                expected = ByteTokenizer().decode(expected_tokens(alone))
                assert answer.json()["choices"][0]["text"] == expected
        assert engine.most_running == SLOTS
        # Recovery: nothing is left, and everything that fits is taken at once.
        assert engine.idle and not server.service.driver.busy
        again = asyncio.run(ask_all(server.url, QUEUE))
        assert [answer.status_code for answer in again] == [200] * QUEUE
