"""What every request passes first: its id, the name it calls, the key, the size of its body.

It speaks ASGI itself, since a middleware of the framework would stand between a stream and its
reader.
"""

from __future__ import annotations

import hmac
import logging
import re
import time
import uuid
from urllib.parse import urlsplit

from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from jaxspec.serve.http.completions.event_stream import ABORT
from jaxspec.serve.http.driver import describe
from jaxspec.serve.http.errors import ApiError
from jaxspec.serve.http.metrics import Metrics
from jaxspec.serve.http.openapi import needs_key
from jaxspec.serve.http.settings import HttpSettings

log = logging.getLogger("jaxspec.serve")

_REQUEST_ID = re.compile(r"[\w.:-]{1,128}", re.ASCII)
REQUEST_ID = "jaxspec.request_id"  # key of the scope's state


class Guard:
    """Wraps the application."""

    def __init__(self, app: ASGIApp, metrics: Metrics, settings: HttpSettings):
        self._app, self._metrics, self._most_bytes = app, metrics, settings.most_bytes
        self._key = None if settings.key is None else settings.key.encode()
        self._hosts = {name.lower().strip("[]") for name in settings.hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        exchange = _Exchange(scope, receive, send, self._most_bytes)
        try:
            if (error := self._refuse(scope)) is not None:
                await error.response()(scope, exchange.receive, exchange.send)
            else:
                await self._app(scope, exchange.receive, exchange.send)
        except Exception as error:  # never to the server's own log, which would print the message
            exchange.fail(error)
        finally:
            self._note(scope, exchange)

    def _refuse(self, scope: Scope) -> ApiError | None:
        """Return why nobody may ask this, None if it may be asked."""
        if self._hosts and _read_host(scope) not in self._hosts:
            message = (
                "This server has another name: use its address, or start it with --allow-host."
            )
            return ApiError(400, message, "unknown_host")
        if self._key is None or not needs_key(scope["path"]):
            return None
        kind, _, given = _read_header(scope, b"authorization").partition(b" ")
        if kind.lower() == b"bearer" and hmac.compare_digest(given.strip(), self._key):
            return None
        return ApiError(401, "The API key is missing or wrong.", "invalid_api_key")

    def _note(self, scope: Scope, exchange: _Exchange) -> None:
        """Count and log the answer: its id, route, status and time, and nothing that was said."""
        route = getattr(scope.get("route"), "path", "other")
        self._metrics.answers.labels(route, str(exchange.status)).inc()
        milliseconds = 1e3 * (time.monotonic() - exchange.began)
        if needs_key(scope["path"]):  # not every probe and scrape
            log.info("%s %s %d %.0f ms", exchange.id, route, exchange.status, milliseconds)


class _Exchange:
    """One request and its answer.

    Attributes:
      id: of the request: the client's X-Request-Id if it is a plain word, else a new one.
      status: of the answer; 499 if there was nobody to answer.
    """

    def __init__(self, scope: Scope, receive: Receive, send: Send, most_bytes: int):
        self._scope, self._receive, self._send = scope, receive, send
        self._left = self._most = most_bytes
        self.status, self.began, self._complete = 499, time.monotonic(), False
        given = _read_header(scope, b"x-request-id").decode("latin-1")
        self.id = given if _REQUEST_ID.fullmatch(given) else uuid.uuid4().hex
        state = scope.setdefault("state", {})
        state[REQUEST_ID] = self.id
        # uvicorn's `send` belongs to the object that holds the connection.
        transport = getattr(getattr(send, "__self__", None), "transport", None)
        if transport is not None:
            state[ABORT] = transport.abort

    async def receive(self) -> Message:
        """Receive a message; a body that is too large is an error."""
        message = await self._receive()
        self._left -= len(message.get("body", b""))
        if self._left < 0:
            text = f"The body is larger than {self._most} bytes."
            raise HTTPException(413, text)  # the framework lets no other error pass here
        return message

    async def send(self, message: Message) -> None:
        """Send a message, with the request's id in the headers."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            headers = [*message.get("headers", []), (b"x-request-id", self.id.encode())]
            message = {**message, "headers": headers}
        self._complete = message["type"] == "http.response.body" and not message.get("more_body")
        await self._send(message)

    def fail(self, error: Exception) -> None:
        """Log an error that nothing else caught, and cut an answer that it left incomplete."""
        log.error("%s failed: %s", self.id, describe(error))
        if not self._complete:
            self._scope["state"].get(ABORT, lambda: None)()


def _read_host(scope: Scope) -> str | None:
    """Return the name in the Host header, without a port or brackets; None if it has none."""
    try:
        return urlsplit(f"//{_read_header(scope, b'host').decode('latin-1')}").hostname
    except ValueError:
        return None


def _read_header(scope: Scope, name: bytes) -> bytes:
    """Return a header of a request, empty if there is none."""
    return next((value for key, value in scope["headers"] if key == name), b"")
