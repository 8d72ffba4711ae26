"""Server-sent events that nobody can block: a reader may be slow, stop reading, or be gone."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Coroutine
from typing import Any, TypeVar

from fastapi.responses import StreamingResponse
from starlette.types import Message, Receive, Scope, Send

# Where `jaxspec.serve.http.guard` leaves a function that cuts the connection.
ABORT = "jaxspec.abort"

log = logging.getLogger("jaxspec.serve")

T = TypeVar("T")


class EventStream(StreamingResponse):
    """Sends events until they end or the reader is gone; in every case it calls `close`."""

    media_type = "text/event-stream"

    def __init__(
        self, events: AsyncIterator[bytes], *, send_timeout: float, close: Callable[[], None]
    ):
        """Make it.

        Args:
          events: whole events. While one waits to be sent, none is taken.
          send_timeout: seconds that the reader may leave an event unread; then it is dropped.
          close: called once, when nothing more will be read.
        """
        headers = {"Cache-Control": "no-cache", "X-Accel-Buffering": "no"}
        super().__init__(events, headers=headers)
        self._send_timeout, self._close = send_timeout, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer an ASGI request."""

        async def send_in_time(message: Message) -> None:
            async with asyncio.timeout(self._send_timeout):
                await send(message)

        try:
            await run_until_gone(self.stream_response(send_in_time), receive)
        except TimeoutError:
            log.info("dropped a client that read nothing for %g s", self._send_timeout)
            # What waits in the connection's buffer would never leave it.
            scope.get("state", {}).get(ABORT, lambda: None)()
        finally:
            self._close()


async def run_until_gone(work: Coroutine[Any, Any, T], receive: Receive) -> T | None:
    """Await `work`, and cancel it when the client is gone; return its result, or None then."""
    working, gone = asyncio.create_task(work), asyncio.create_task(_wait_until_gone(receive))
    try:
        await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
        return working.result() if working.done() else None
    finally:
        working.cancel()
        gone.cancel()
        await asyncio.gather(working, gone, return_exceptions=True)


async def _wait_until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
