"""The ends of a server process: SIGTERM, an engine that raises, one that hangs. And its log."""

import json
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")

TESTS = Path(http_server.__file__).parent
LONG = {"prompt": "open sesame", "max_tokens": 400, "temperature": 0}


class Process:
    """A server in a process of its own; a word in the file `fault` breaks its engine."""

    def __init__(self, folder: Path, seconds=0.01, drain=30.0):
        self.fault, self.log = folder / "fault", folder / "log"
        with self.log.open("w") as log:
            self.process = subprocess.Popen(
                [sys.executable, TESTS / "http_server.py", str(seconds), self.fault, str(drain)],
                cwd=TESTS.parent,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={"PYTHONPATH": f"{TESTS.parent}:{TESTS}", "JAX_PLATFORMS": "cpu"},
            )
        self.http = httpx.Client(base_url=f"http://127.0.0.1:{self.read_port()}", timeout=30)
        http_server.wait_until(lambda: self.http.get("/ready").status_code == 200)

    def read_port(self) -> int:
        return int(self.process.stdout.readline())

    def stream(self, **more):
        return self.http.stream("POST", "/v1/completions", json=LONG | {"stream": True} | more)

    def close(self):
        self.http.close()
        self.process.kill()
        self.process.wait(20)
        self.process.stdout.close()


@pytest.fixture
def start(tmp_path):
    made = []

    def make(**options):
        made.append(Process(tmp_path, **options))
        return made[-1]

    yield make
    for one in made:
        one.close()


def events(lines) -> list[dict]:
    """The rest of a stream; True stands for its regular end."""
    found = [line.removeprefix("data: ") for line in lines if line]
    return [True if one == "[DONE]" else json.loads(one) for one in found]


def test_sigterm_lets_streams_end_and_takes_no_more(start):
    one = start()
    with one.stream() as stream:
        lines = stream.iter_lines()
        next(lines)
        one.process.send_signal(signal.SIGTERM)
        http_server.wait_until(lambda: one.http.get("/ready").status_code == 503)
        assert one.http.get("/health").status_code == 200
        refused = one.http.post("/v1/completions", json=LONG)
        assert refused.status_code == 503 and "Retry-After" in refused.headers
        assert refused.json()["error"]["code"] == "shutting_down"
        rest = events(lines)
    assert rest[-1] is True and rest[-2]["choices"][0]["finish_reason"] == "length"
    assert one.process.wait(20) == 0


def test_the_drain_deadline_ends_streams_with_an_error(start):
    one = start(seconds=0.2, drain=0.3)
    with one.stream() as stream:
        lines = stream.iter_lines()
        next(lines)
        one.process.send_signal(signal.SIGTERM)
        rest = events(lines)
    assert rest[-1]["error"]["code"] == "shutting_down"
    assert one.process.wait(20) == 0


@pytest.mark.parametrize("fault", ["raise", "hang"])
def test_a_dead_engine_ends_everything(start, fault):
    one = start()
    with one.stream() as stream:
        lines = stream.iter_lines()
        next(lines)
        one.fault.write_text(fault)
        rest = events(lines)
        assert rest[-1]["error"]["code"] == "engine_dead"
        assert one.http.get("/health").status_code == 503
        assert one.http.get("/ready").status_code == 503
        assert one.http.post("/v1/completions", json=LONG).status_code == 503
    assert one.process.wait(30) == 1
    log = one.log.read_text()
    assert "the engine failed" in log and "sesame" not in log


def test_texts_are_not_logged(start):
    one = start()
    long, header = "sesame " * 99, {"Content-Type": "application/json"}
    one.http.post("/v1/completions", json={"prompt": "sesame"})
    one.http.post("/v1/completions", json={"prompt": "sesame", "sesame": 1})
    one.http.post("/v1/completions", json={"prompt": ["sesame", 5]})
    one.http.post("/v1/completions", json={"prompt": long})
    one.http.post("/v1/completions", json={"prompt": "sesame", "user": "sesame", "n": 99})
    one.http.post("/v1/completions", content='{"prompt": "sesame', headers=header)
    one.http.post("/v1/chat/completions", json={"messages": [{"role": "sesame"}]})
    one.http.get("/sesame?prompt=sesame", headers={"X-Request-Id": "a b sesame"})
    one.process.send_signal(signal.SIGTERM)
    assert one.process.wait(20) == 0
    log = one.log.read_text()
    assert len(re.findall(r"/v1/completions \d+ \d+ ms", log)) == 6 and "sesame" not in log
