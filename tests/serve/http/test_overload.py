"""Ten times more requests than fit: refusals with Retry-After, no lost slot, and recovery."""

import asyncio
import collections
import threading

import pytest
from fake_engine import ByteTokenizer, FakeEngine, expected_tokens

from jaxspec.serve.requests import ServeRequest

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")
translate = pytest.importorskip("jaxspec.serve.http.translate")

SLOTS, QUEUE = 4, 8


async def ask(client, number: int):
    body = {"prompt": f"request {number}", "max_tokens": 40, "seed": number}
    return await client.post("/v1/completions", json=body)


async def ask_all(url: str, count: int):
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(ask(client, number) for number in range(count)))


def test_a_flood_of_prompts_that_take_long_to_encode():
    """They are refused before they pile up, and the others are served."""
    go = threading.Event()

    class Slow(ByteTokenizer):
        def encode(self, text):
            go.wait(20)
            return super().encode(text)

    async def flood(url):
        asked = asyncio.create_task(ask_all(url, 2 * translate.MOST_WAITING))
        async with asyncio.timeout(15):
            while http_refusals() < translate.MOST_WAITING:
                await asyncio.sleep(0.01)
        go.set()
        return await asked

    engine = FakeEngine(queue=2 * translate.MOST_WAITING)
    with http_server.running(engine, Slow()) as server:

        def http_refusals():
            counter = server.service.metrics.answers.labels("/v1/completions", "429")
            return counter._value.get()

        counts = collections.Counter(one.status_code for one in asyncio.run(flood(server.url)))
    assert counts == {200: translate.MOST_WAITING, 429: translate.MOST_WAITING}


def test_overload():
    engine = FakeEngine(slots=SLOTS, queue=QUEUE, seconds=0.02)
    with http_server.running(engine) as server:
        answers = asyncio.run(ask_all(server.url, 10 * (SLOTS + QUEUE)))
        counts = collections.Counter(answer.status_code for answer in answers)
        # Whether the engine has filled its slots before the last of them arrives is chance.
        assert set(counts) == {200, 429} and counts[200] >= QUEUE
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
