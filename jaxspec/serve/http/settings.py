"""Settings of an endpoint."""

from __future__ import annotations

import dataclasses

from jaxspec.serve.http.metrics import PREFIX


@dataclasses.dataclass(frozen=True)
class HttpSettings:
    """Settings of an endpoint; times are in seconds.

    Attributes:
      model: name that clients know the model by.
      room: most tokens of a prompt together with its answer.
      key: bearer token that /v1 asks for; None: none.
      most_choices: samples times prompts of one request; more would never fit the queue.
      most_bytes: largest body of a request.
      request_timeout: longest request; None: no limit.
      send_timeout: how long a reader may leave an event unread.
      visit_timeout: how long a visit to the device may take before the engine counts as dead; one
        may read a whole prompt.
      drain_timeout: how long streams may go on after SIGTERM.
      exit_delay: how long a server with a dead engine goes on to say so.
      metrics_prefix: of all metrics; `vllm` suits dashboards that were made for vLLM.
      page: serve the chat page at `/`.
      hosts: names that the Host header may have; () for any. On a loopback address they keep web
        pages from reaching the server under a name of their own.
    """

    model: str
    room: int
    key: str | None = None
    most_choices: int = 64
    most_bytes: int = 8 << 20
    request_timeout: float | None = None
    send_timeout: float = 30.0
    visit_timeout: float = 300.0
    drain_timeout: float = 30.0
    exit_delay: float = 2.0
    metrics_prefix: str = PREFIX
    page: bool = True
    hosts: tuple[str, ...] = ()
