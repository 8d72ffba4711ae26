"""News between the engine's thread and a reader, step by step."""

import asyncio
import threading

import pytest
from fake_engine import FakeEngine

from jaxspec.serve.requests import Update

driver = pytest.importorskip("jaxspec.serve.http.driver")
errors = pytest.importorskip("jaxspec.serve.http.errors")
generation = pytest.importorskip("jaxspec.serve.http.completions.generation")
metrics = pytest.importorskip("jaxspec.serve.http.metrics")


def test_news_precede_the_error_that_a_busy_reader_missed():
    async def read():
        one = generation.Generation(None, metrics.Metrics(), 1)
        one.put(0, Update(0, (5,), (False,), "a"))
        reader = aiter(one)
        texts = [delta.text for delta in await anext(reader)]
        one.put(0, Update(0, (6,), (False,), "b"))
        one.fail(errors.ApiError(500, "it failed"))
        texts += [delta.text for delta in await anext(reader)]
        with pytest.raises(errors.ApiError, match="it failed"):
            await anext(reader)
        return texts

    assert asyncio.run(read()) == ["a", "b"]


def test_a_stop_just_before_the_engine_waits_ends_its_thread():
    class Late(threading.Event):
        """Asked to stop at the worst moment: after the look at whether to stop."""

        def clear(self):
            one._stopping = True
            self.set()
            super().clear()

    async def run():
        await one.start()
        await asyncio.to_thread(one._thread.join, 10)
        waits = one._thread.is_alive()
        await one.stop()
        return waits

    one = driver.Driver(FakeEngine(), metrics.Metrics(), visit_timeout=60, on_failure=lambda: None)
    one._wake = Late()
    assert not asyncio.run(run())
