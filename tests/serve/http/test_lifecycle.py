"""The ends of a server: SIGTERM, an engine that raises, one that hangs. And its log."""

import contextlib
import json
import re
import signal
import subprocess
import sys
import threading
import types
from pathlib import Path

import pytest
from fake_engine import FakeEngine

httpx = pytest.importorskip("httpx")
http_server = pytest.importorskip("http_server")

HELPERS = Path(http_server.__file__).parent
TEXT = {"prompt": "open sesame", "max_tokens": 20, "temperature": 0}
CHAT = {"messages": [{"role": "user", "content": "open sesame"}], "max_tokens": 20, "stream": True}


@contextlib.contextmanager
def serving(folder: Path, visit_timeout: float, cold: bool = False):
    """A server in a process of its own; its engine waits while the file `pause` exists.

    Args:
      cold: begin while the engine warms up.
    """
    log, pause = folder / "log", folder / "pause"
    if cold:
        pause.touch()
    with log.open("w") as file:
        process = subprocess.Popen(
            [sys.executable, HELPERS / "http_server.py", pause, str(visit_timeout)],
            cwd=HELPERS.parents[1],
            stdout=subprocess.PIPE,
            stderr=file,
            text=True,
            env={"PYTHONPATH": f"{HELPERS.parents[1]}:{HELPERS}", "JAX_PLATFORMS": "cpu"},
        )
    try:
        url = f"http://127.0.0.1:{int(process.stdout.readline())}"
        with httpx.Client(base_url=url, timeout=30) as http:
            ready = 503 if cold else 200
            http_server.wait_until(lambda: http.get("/ready").status_code == ready)
            yield types.SimpleNamespace(process=process, http=http, log=log, pause=pause)
    finally:
        process.kill()
        process.wait(60)
        process.stdout.close()


@contextlib.contextmanager
def begun(http):
    """The lines of a stream that has begun: its first event comes before any token."""
    with http.stream("POST", "/v1/chat/completions", json=CHAT) as stream:
        lines = stream.iter_lines()
        next(lines)
        yield lines


def events(lines) -> list[dict]:
    """The rest of a stream; True stands for its regular end."""
    found = [line.removeprefix("data: ") for line in lines if line]
    return [True if one == "[DONE]" else json.loads(one) for one in found]


@pytest.mark.parametrize(("sent", "expected"), [("SIGTERM", 0), ("SIGINT", 130)])
def test_a_signal_before_it_is_ready_ends_it_at_once(tmp_path, sent, expected):
    with serving(tmp_path, visit_timeout=300, cold=True) as one:
        assert one.http.get("/ready").status_code == 503
        one.process.send_signal(getattr(signal, sent))
        assert one.process.wait(20) == expected
        assert "Traceback" not in one.log.read_text()


def test_a_second_signal_ends_it_without_waiting(tmp_path):
    with serving(tmp_path, visit_timeout=300) as one:
        one.pause.touch()
        with contextlib.suppress(httpx.TransportError), begun(one.http):
            one.process.send_signal(signal.SIGTERM)
            http_server.wait_until(lambda: one.http.get("/ready").status_code == 503)
            one.process.send_signal(signal.SIGTERM)
            assert one.process.wait(20) == 0
        assert "Traceback" not in one.log.read_text()


def send_secrets(http) -> None:
    """Send requests of all kinds with a word that no log may hold."""
    long, header = "sesame " * 99, {"Content-Type": "application/json"}
    http.post("/v1/completions", json={"prompt": "sesame"})
    http.post("/v1/completions", json={"prompt": "sesame", "sesame": 1})
    http.post("/v1/completions", json={"prompt": ["sesame", 5]})
    http.post("/v1/completions", json={"prompt": long})
    http.post("/v1/completions", json={"prompt": "sesame", "user": "sesame", "n": 99})
    http.post("/v1/completions", content='{"prompt": "sesame', headers=header)
    http.post("/v1/chat/completions", json={"messages": [{"role": "sesame"}]})
    http.get("/sesame?prompt=sesame", headers={"X-Request-Id": "a b sesame"})


@pytest.fixture(scope="module")
def drained(tmp_path_factory):
    """What was heard of a server that got SIGTERM during a stream."""
    with serving(tmp_path_factory.mktemp("drained"), visit_timeout=300) as one:
        send_secrets(one.http)
        one.pause.touch()
        with begun(one.http) as lines:
            one.process.send_signal(signal.SIGTERM)
            http_server.wait_until(lambda: one.http.get("/ready").status_code == 503)
            health = one.http.get("/health").status_code
            refused = one.http.post("/v1/completions", json=TEXT)
            one.pause.unlink()
            rest = events(lines)
        status = one.process.wait(60)
        log = one.log.read_text()
    return types.SimpleNamespace(health=health, refused=refused, rest=rest, status=status, log=log)


def test_sigterm_lets_streams_end_and_takes_no_more(drained):
    assert drained.health == 200
    assert drained.refused.status_code == 503 and "Retry-After" in drained.refused.headers
    assert drained.refused.json()["error"]["code"] == "shutting_down"
    assert drained.rest[-1] is True
    assert drained.rest[-2]["choices"][0]["finish_reason"] == "length"
    assert drained.status == 0


def test_texts_are_not_logged(drained):
    found = re.findall(r"/v1/(\S+) \d+ \d+ ms", drained.log)
    assert sorted(found) == ["chat/completions"] * 2 + ["completions"] * 7
    assert "sesame" not in drained.log


def test_the_drain_deadline_ends_streams_with_an_error():
    go = threading.Event()
    engine = FakeEngine(hook=lambda: go.wait(60))
    with http_server.running(engine, drain_timeout=0.1) as server, begun(server.http) as lines:
        server.server.handle_exit(signal.SIGTERM, None)
        assert events(lines)[-1]["error"]["code"] == "shutting_down"
        go.set()


def test_an_engine_that_raises_ends_everything(caplog):
    ended = threading.Event()

    def fail():
        raise RuntimeError(f"a visit failed on {bytes(engine.seen[-1].tokens)!r}")

    engine = FakeEngine(hook=fail)
    with http_server.running(engine, exit_delay=0.05) as server:
        server.service.on_end = ended.set  # instead of the end, before which all is asked
        with begun(server.http) as lines:
            rest = events(lines)
        assert rest[-1]["error"]["code"] == "engine_dead"
        for path in ("/health", "/ready"):
            assert server.http.get(path).status_code == 503
        assert server.post(**TEXT).status_code == 503
        assert ended.wait(60)
    assert "the engine failed: RuntimeError" in caplog.text and "sesame" not in caplog.text


@pytest.mark.thorough
def test_an_engine_that_hangs_ends_the_process(tmp_path):
    with serving(tmp_path, visit_timeout=1) as one:
        one.pause.touch()
        with begun(one.http) as lines:
            assert events(lines)[-1]["error"]["code"] == "engine_dead"
        assert one.process.wait(60) == 1
        assert "the engine failed: a visit took over 1 s" in one.log.read_text()
