"""Run an endpoint: the socket, signals, and the exit status."""

from __future__ import annotations

import asyncio
import ipaddress
import logging
import os
import signal
import socket
import sys
from types import FrameType

import uvicorn

from jaxspec.core.runtime import interrupts
from jaxspec.serve.http.app import make_app
from jaxspec.serve.http.service import Service

ENGINE_DEAD = 1

# Seconds that connections get to end after the last stream did.
_CLOSE_TIMEOUT = 3

# Seconds that a connection stays open for the next request. Clients close theirs after 5 s, or 60;
# if the server closed first, a request on its way would meet a closed connection.
_KEEP_ALIVE = 75


class Server(uvicorn.Server):
    """uvicorn, which drains on the first SIGTERM or SIGINT and stops on the second.

    Before the engine is warm there is nothing to drain: it stops on the first.

    Attributes:
      interrupted: whether SIGINT came before the engine was warm.
    """

    interrupted = False

    def __init__(self, service: Service):
        config = uvicorn.Config(
            make_app(service),
            loop="asyncio",
            ws="none",
            lifespan="on",
            log_config=None,
            access_log=False,
            proxy_headers=False,
            server_header=False,
            timeout_keep_alive=_KEEP_ALIVE,
            timeout_graceful_shutdown=_CLOSE_TIMEOUT,
        )
        super().__init__(config)
        self._service, self._asked = service, False
        service.on_end = self.end

    def end(self) -> None:
        """Let the server stop."""
        self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to listen."""
        self._loop = asyncio.get_running_loop()
        await super().startup(sockets)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """Handle a signal, in the main thread."""
        warm = self._service.driver.warm
        self.interrupted |= sig == signal.SIGINT and not warm
        if self._asked or not self.started or not warm:
            # What is cancelled now is no failure, and uvicorn would show it as one.
            logging.getLogger("uvicorn.error").setLevel(logging.CRITICAL + 1)
            self.should_exit = self.force_exit = True
            return
        self._asked = True
        self._loop.call_soon_threadsafe(self._drain)

    def _drain(self) -> None:
        # The loop itself keeps no task alive.
        self._draining = self._loop.create_task(self._service.drain())


def listen(host: str, port: int) -> socket.socket:
    """Open the socket; port 0 picks a free one.

    Raises:
      OSError: the address is taken or unknown.
    """
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        sock = socket.create_server((host, port), family=family, backlog=1024)
    except OSError as error:
        # Python adds the address to the system's words.
        reason = (error.strerror or str(error)).partition(" (")[0]
        raise OSError(
            f"cannot listen on {host}:{port} ({reason}): give another --host or --port"
        ) from None
    # Connections inherit it: an event must not wait until the one before is acknowledged.
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return sock


def is_loopback(host: str) -> bool:
    """Whether only this machine reaches an address."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def serve(service: Service, sock: socket.socket) -> int:
    """Serve until a signal or the engine's death.

    Returns:
      0 after a signal, when all streams have ended; 130 if that was SIGINT and nothing was served
      before; 1 if the engine is dead.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    logging.getLogger("uvicorn").setLevel(logging.WARNING)
    one = Server(service)
    one.run(sockets=[sock])
    status = interrupts.STATUS if one.interrupted else 0
    if service.driver.failure is not None:
        status = ENGINE_DEAD
    if service.driver.stuck or status:
        # A thread that hangs in a device would keep the interpreter from ending, and JAX would wait
        # for processes that follow this one.
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(status)
    return status
