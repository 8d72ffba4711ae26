"""Servers for the tests of the endpoint: in a thread of this process, or in a process of their own.

`python tests/helpers/http_server.py PAUSE SECONDS` serves a fake engine on a free port. Its start
and its visits wait while the file PAUSE exists; it counts as dead after so many seconds of that.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
from fake_engine import ByteTokenizer, FakeEngine

from jaxspec.serve.http import server
from jaxspec.serve.http.service import Service
from jaxspec.serve.http.settings import HttpSettings


@dataclasses.dataclass
class Running:
    """A server in a thread; `http` is a client of it.

    Attributes:
      server: which runs in the thread.
    """

    url: str
    engine: Any
    service: Service
    server: server.Server
    http: httpx.Client

    def post(self, path: str = "/v1/completions", **body: Any) -> httpx.Response:
        return self.http.post(path, json=body)


@contextlib.contextmanager
def running(
    engine: Any = None,
    tokenizer: Any = None,
    send_buffer: int | None = None,
    wait: bool = True,
    **settings: Any,
) -> Iterator[Running]:
    """Run a server until the block ends.

    Args:
      send_buffer: bytes of answers that the kernel holds for a connection.
      wait: begin the block when the engine is warm.
    """
    engine = FakeEngine() if engine is None else engine
    tokenizer = ByteTokenizer() if tokenizer is None else tokenizer
    given = {"model": "fake", "room": engine.room, "exit_delay": 0.3}
    service = Service(engine, tokenizer, HttpSettings(**given | settings))
    sock = server.listen("127.0.0.1", 0)
    if send_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)
    url = f"http://127.0.0.1:{sock.getsockname()[1]}"
    one = server.Server(service)
    thread = threading.Thread(target=lambda: one.run(sockets=[sock]))
    with httpx.Client(base_url=url, timeout=30) as http:
        place = Running(url, engine, service, one, http)
        thread.start()
        try:
            wait_until(lambda: not wait or (one.started and service.driver.warm), 300)
            yield place
        finally:
            one.should_exit = True
            thread.join(20)
            assert not thread.is_alive()


def check_error(response, status=400, code=None, param=None):
    """Every error has OpenAI's object."""
    assert response.status_code == status, response.text
    error = response.json()["error"]
    assert set(error) == {"message", "type", "param", "code"} and error["message"]
    assert response.headers["content-type"] == "application/json"
    assert (error["code"], error["param"]) == (code, param), error


def wait_until(true: Any, seconds: float = 20.0) -> None:
    """Wait until a condition holds; an upper bound for a hanging test, not a measurement."""
    end = time.monotonic() + seconds
    while not true():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.005)


def main() -> int:
    """Serve, and print the port."""
    pause, visit_timeout = Path(sys.argv[1]), float(sys.argv[2])

    def wait() -> None:
        while pause.exists():
            time.sleep(0.005)

    engine = FakeEngine(seconds=0.001, hook=wait)
    engine.warm_up = lambda **options: wait()
    settings = HttpSettings("fake", engine.room, visit_timeout=visit_timeout, exit_delay=0.1)
    sock = server.listen("127.0.0.1", 0)
    print(sock.getsockname()[1], flush=True)
    return server.serve(Service(engine, ByteTokenizer(), settings), sock)


if __name__ == "__main__":
    sys.exit(main())
