"""Hours of mixed traffic: memory stays flat, no slot is lost, and every text is the right one.

JAXSPEC_SOAK=1800 python -m pytest -m slow tests/serve/http/test_soak.py -s
"""

import asyncio
import collections
import json
import os
import random
import time
from pathlib import Path

import pytest
from fake_engine import ByteTokenizer, FakeEngine, expected_tokens

import jaxspec
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.serve import ServeRequest, make_engine

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")

SECONDS = float(os.environ.get("JAXSPEC_SOAK", 60))
COUNTS = 1, 8, 60  # tokens of an answer
MOST_GROWTH = 16  # MiB from the end of the first third to the end


def memory() -> float:
    """MiB that this process, with the server in it, has in memory."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


class Fake:
    """An engine without a model, and prompts that nobody sent before."""

    clients, pause = 24, 0.05  # most seconds that a client waits between two requests

    def __init__(self):
        self.engine, self.tokenizer = FakeEngine(slots=4, queue=12, seconds=0.002), ByteTokenizer()

    def draw(self, pick: random.Random) -> tuple[dict, str]:
        """Draw a request, and say which text answers it."""
        prompt, count = f"soak {pick.random()}", pick.choice(COUNTS)
        tokens = expected_tokens(ServeRequest(tuple(prompt.encode()), count))
        asked = {"prompt": prompt, "max_tokens": count, "temperature": 0}
        return asked, self.tokenizer.decode(tokens)

    def ended(self) -> bool:
        return self.engine.idle and self.engine.ended == self.engine.submitted


class Mini:
    """`mini` with its drafter, and prompts that come again and again."""

    clients, pause = 8, 0.5

    def __init__(self):
        params = jaxspec.load("mini", drafter="dflash", dtype="float32")
        self.engine = make_engine(params, slots=4, capacity=320, queue=12)
        self.tokenizer = load_tokenizer(params.spec.tokenizer)
        prompts = ("def area(width, height):", "It was a", "Question: Tom has 3 apples." * 4)
        self.asked = []
        for prompt in prompts:
            for count in COUNTS:
                for temperature, seed in ((0.0, 0), (1.0, 7), (1.0, 8)):
                    options = dict(temperature=temperature, seed=seed, max_new_tokens=count)
                    text = jaxspec.decode(params, prompt, drafter="ar", **options).text
                    asked = dict(
                        prompt=prompt, max_tokens=count, temperature=temperature, seed=seed
                    )
                    self.asked.append((asked, text))

    def draw(self, pick: random.Random) -> tuple[dict, str]:
        """Draw a request, and say which text answers it."""
        asked, text = pick.choice(self.asked)
        return asked | ({"drafter": "ar"} if pick.random() < 0.2 else {}), text

    def ended(self) -> bool:
        counters = self.engine.counters()
        assert counters["compiles_after_warm_up"] == 0
        return self.engine.idle and counters["running"] == counters["waiting"] == 0


async def use(client, pick: random.Random, end: float, seen: collections.Counter, made) -> None:
    """Send requests of all kinds until the end, and check what comes back."""
    while time.monotonic() < end:
        kind = pick.choice(("whole", "stream", "leave", "bad", "key"))
        body, text = made.draw(pick)
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
                assert answer.json()["choices"][0]["text"] == text
        else:
            async with client.stream(
                "POST", "/v1/completions", json=body | {"stream": True}
            ) as answer:
                lines = [line async for line in cut(answer.aiter_lines(), kind, pick)]
            if kind == "stream" and answer.status_code == 200:
                events = [line.removeprefix("data: ") for line in lines if line]
                assert events.pop() == "[DONE]"
                parts = [one["text"] for event in events for one in json.loads(event)["choices"]]
                assert "".join(parts) == text
        seen[kind, answer.status_code] += 1
        await asyncio.sleep(pick.random() * made.pause)


async def cut(lines, kind: str, pick: random.Random):
    """Pass lines on; of one who leaves only the first few."""
    left = pick.randrange(6) if kind == "leave" else -1
    async for line in lines:
        if left == 0:
            return
        left -= 1
        yield line


async def soak(url: str, seconds: float, made) -> collections.Counter:
    end, seen = time.monotonic() + seconds, collections.Counter()
    limits = httpx.Limits(max_connections=2 * made.clients, max_keepalive_connections=made.clients)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await asyncio.gather(
            *(use(client, random.Random(n), end, seen, made) for n in range(made.clients))
        )
    return seen


@pytest.mark.slow
@pytest.mark.parametrize("kind", [Fake, Mini])
def test_soak(kind):
    made = kind()
    with http_server.running(made.engine, made.tokenizer) as server:
        asyncio.run(soak(server.url, SECONDS / 3, made))
        before = memory()
        seen = asyncio.run(soak(server.url, 2 * SECONDS / 3, made))
        after = memory()
        http_server.wait_until(made.ended)
        assert not server.service.driver.busy
    print(f"{sum(seen.values())} requests: {dict(seen)}; {before:.0f} MiB, then {after:.0f} MiB")
    assert after - before < MOST_GROWTH
    assert seen["whole", 200] and seen["leave", 200] and seen["bad", 400]
