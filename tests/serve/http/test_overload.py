"""Ten times more requests than fit: refusals with Retry-After, no lost slot, and recovery."""

import asyncio
import collections
import threading

import pytest
from fake_engine import ByteTokenizer, FakeEngine, expected_tokens

from jaxspec.serve.requests import ServeRequest

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")
translate = pytest.importorskip("jaxspec.serve.http.completions.translate")

SLOTS, QUEUE = 2, 4


async def ask(client, number: int):
    body = {"prompt": f"request {number}", "max_tokens": 40, "seed": number}
    return await client.post("/v1/completions", json=body)


def count_refusals(server) -> int:
    return int(server.service.metrics.answers.labels("/v1/completions", "429")._value.get())


async def flood(server, count: int, refused: int, go: threading.Event):
    """Ask for `count` texts at once; let the server go on when it has refused so many."""
    asked = asyncio.create_task(ask_all(server.url, count))
    async with asyncio.timeout(100):
        while count_refusals(server) < refused:
            await asyncio.sleep(0.01)
    go.set()
    return await asked


async def ask_all(url: str, count: int):
    limits = httpx.Limits(max_connections=count)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        return await asyncio.gather(*(ask(client, number) for number in range(count)))


def test_a_flood_of_prompts_that_take_long_to_encode(monkeypatch):
    """They are refused before they pile up, and the others are served."""
    monkeypatch.setattr(translate, "MOST_WAITING", QUEUE)
    go = threading.Event()

    class Slow(ByteTokenizer):
        def encode(self, text, special=True):
            go.wait(100)
            return super().encode(text)

    with http_server.running(FakeEngine(queue=QUEUE), Slow()) as server:
        answers = asyncio.run(flood(server, 2 * QUEUE, QUEUE, go))
    assert collections.Counter(one.status_code for one in answers) == {200: QUEUE, 429: QUEUE}


def test_overload():
    """The engine begins when the queue has refused all that it cannot hold."""
    go = threading.Event()
    engine = FakeEngine(slots=SLOTS, queue=QUEUE, hook=lambda: go.wait(100))
    many = 10 * (SLOTS + QUEUE)
    with http_server.running(engine) as server:
        answers = asyncio.run(flood(server, many, many - QUEUE, go))
        counts = collections.Counter(answer.status_code for answer in answers)
        assert counts == {200: QUEUE, 429: many - QUEUE}
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
