"""Readers that leave, stop reading or read slowly: slots become free, and others go on."""

import contextlib
import json
import re
import socket
import threading
import time

import pytest
from fake_engine import ByteTokenizer, FakeEngine, expected_tokens

from jaxspec.serve.requests import ServeRequest

http_server = pytest.importorskip("http_server")


def connect(server, receive_buffer=None) -> socket.socket:
    host, port = server.url.removeprefix("http://").split(":")
    sock = socket.socket()
    if receive_buffer:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, receive_buffer)
    sock.settimeout(20)
    sock.connect((host, int(port)))
    return sock


def send(sock, body, path="/v1/completions", cut=None):
    """Send a request, or the first `cut` bytes of its body."""
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    sock.sendall(f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data[:cut])


def read_until(sock, wanted: bytes) -> bytes:
    got = b""
    while wanted not in got:
        part = sock.recv(65536)
        assert part, got[-300:]
        got += part
    return got


@pytest.fixture(scope="module")
def one_slot():
    """A server of one slot whose visits take a while, and a log of when requests are cancelled."""
    engine = FakeEngine(slots=1, queue=4, seconds=0.02, room=4000)
    cancelled = {}
    cancel = engine.cancel

    def note(id):
        cancelled[id] = engine.visits
        cancel(id)

    engine.cancel = note
    with http_server.running(engine) as server:
        server.cancelled = cancelled
        yield server


@pytest.fixture
def slow(one_slot):
    """The server before and after a test: nothing leaks.

    No request is left, and the slot serves the next one.
    """
    one_slot.before = one_slot.engine.submitted
    yield one_slot
    http_server.wait_until(lambda: one_slot.engine.idle)
    assert not one_slot.service.driver.busy
    assert one_slot.post(prompt="next", max_tokens=1).status_code == 200


def check_freed(server, number):
    """The slot, or the place in the queue, of the test's request with this number is free.

    It is so within two visits of the cancellation.
    """
    id = server.before + number
    http_server.wait_until(lambda: id in server.engine.freed)
    assert server.engine.freed[id] - server.cancelled[id] <= 2


LONG = {"prompt": "long", "max_tokens": 3000, "temperature": 0}


def test_gone_while_the_body_arrives(slow):
    with connect(slow) as sock:
        send(sock, LONG, cut=10)
        time.sleep(0.05)
    assert slow.post(prompt="x", max_tokens=1).status_code == 200
    assert slow.engine.submitted == slow.before + 1


def test_gone_in_the_queue(slow):
    with connect(slow) as first, connect(slow) as second:
        send(first, LONG | {"stream": True})
        read_until(first, b"data:")
        send(second, LONG | {"stream": True, "prompt": "queued"})
        read_until(second, b"\r\n\r\n")
        second.close()
        check_freed(slow, 2)
        assert slow.engine.counters()["running"] == 1


def test_gone_before_the_first_token(slow):
    with connect(slow) as sock:
        send(sock, LONG | {"stream": True})
        http_server.wait_until(lambda: slow.engine.submitted > slow.before)
    check_freed(slow, 1)


@pytest.mark.parametrize("n", [1, 3])
def test_gone_in_the_middle_of_a_stream(slow, n):
    with connect(slow) as sock:
        send(sock, LONG | {"stream": True, "n": n})
        read_until(sock, b"data:")
    for number in range(1, n + 1):
        check_freed(slow, number)


def test_gone_while_it_waits_for_a_whole_answer(slow):
    enough = slow.engine.tokens + 10
    with connect(slow) as sock:
        send(sock, LONG)
        http_server.wait_until(lambda: slow.engine.tokens > enough)
    check_freed(slow, 1)


def test_gone_as_the_stream_ends(slow):
    """Closing right after the last event cancels nothing that matters and breaks nothing."""
    with connect(slow) as sock:
        send(sock, LONG | {"stream": True, "max_tokens": 4})
        read_until(sock, b"[DONE]")


# Every event is large.
MANY = {
    "prompt": "many",
    "max_tokens": 12_000,
    "temperature": 0,
    "stream": True,
    "trace": True,
    "return_token_ids": True,
}


def chatty(send_timeout, seconds=0.001):
    engine = FakeEngine(slots=2, room=20_000, per_visit=50, seconds=seconds)
    return http_server.running(engine, send_buffer=4096, send_timeout=send_timeout)


def test_a_reader_that_stops_reading_is_dropped_and_blocks_nobody():
    dropped = threading.Event()
    with chatty(0.2, seconds=0.01) as server, connect(server, receive_buffer=4096) as sock:
        cancel = server.engine.cancel
        server.engine.cancel = lambda id: (cancel(id), dropped.set())
        # No more than half of it is made before.
        server.engine.hook = lambda: server.engine.tokens < 6_000 or dropped.wait(60)
        send(sock, MANY)
        http_server.wait_until(lambda: server.engine.seen)
        body, closing = {"prompt": "meanwhile"}, {"Connection": "close"}
        other = server.http.post("/v1/completions", json=body, headers=closing)
        assert other.status_code == 200
        http_server.wait_until(lambda: server.engine.idle)
        assert server.engine.tokens < 12_000
        # Its connection is gone, though it never read what waits there.
        http_server.wait_until(lambda: not server.server.server_state.connections)
        got = b""
        with contextlib.suppress(ConnectionResetError):  # it is cut, not left half open
            while part := sock.recv(65536):
                got += part
        assert b"[DONE]" not in got
        assert 'finished_reason="abort"} 1.0' in server.http.get("/metrics").text


def test_a_slow_reader_gets_everything_in_fewer_events():
    request = ServeRequest(tuple(b"many"), 12_000)
    with chatty(30.0) as server, connect(server, receive_buffer=4096) as sock:
        send(sock, MANY)
        http_server.wait_until(lambda: server.engine.tokens == 12_000)
        got = read_until(sock, b"[DONE]")
    text, events = "", re.findall(rb"data: (\{.*\})\n\n", got)
    for event in events:
        text += json.loads(event)["choices"][0]["text"]
    assert text == ByteTokenizer().decode(expected_tokens(request))
    assert len(events) < 12_000 / 50
