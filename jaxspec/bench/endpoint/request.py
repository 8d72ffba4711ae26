"""One streamed request to an OpenAI endpoint, with the times at which its parts came."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import httpx


@dataclasses.dataclass(frozen=True)
class Asked:
    """What became of a request. Times are seconds after `began`.

    Attributes:
      status: of HTTP; 0 if there was no answer.
      began: when it was sent, on the clock of `time.monotonic`.
      arrivals: when each part of the text came.
      tokens: generated tokens, as the endpoint counts them; the number of parts if it does not.
      error: why it failed, None if it did not.
    """

    status: int
    began: float
    arrivals: tuple[float, ...] = ()
    tokens: int = 0
    error: str | None = None

    @property
    def first(self) -> float:
        """Seconds to the first part (TTFT)."""
        return self.arrivals[0]

    @property
    def total(self) -> float:
        """Seconds to the last part."""
        return self.arrivals[-1]

    @property
    def per_token(self) -> float | None:
        """Seconds per token after the first part came (TPOT); None of a single token."""
        return (self.total - self.first) / (self.tokens - 1) if self.tokens > 1 else None

    @property
    def gaps(self) -> list[float]:
        """Seconds between parts (ITL); a part may hold several tokens."""
        return [
            after - before for before, after in zip(self.arrivals, self.arrivals[1:], strict=False)
        ]


def make_body(prompt: Any, **settings: Any) -> tuple[str, dict[str, Any]]:
    """Return the path and the body of a request for a text, token ids or messages."""
    chat = isinstance(prompt, list) and bool(prompt) and isinstance(prompt[0], dict)
    stream = {"stream": True, "stream_options": {"include_usage": True}}
    said = {"messages" if chat else "prompt": prompt}
    return "chat/completions" if chat else "completions", {**said, **stream, **settings}


async def ask(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> Asked:
    """Send a request and read its stream to the end."""
    import httpx

    began, status = time.monotonic(), 0
    arrivals: list[float] = []
    tokens: int | None = None
    try:
        async with client.stream("POST", path, json=body) as response:
            status = response.status_code
            if status != 200:
                await response.aread()
                return Asked(status, began, error=f"status {status}")
            async for line in response.aiter_lines():
                data = line.removeprefix("data:").strip()
                if not line.startswith("data:") or not data.startswith("{"):
                    continue
                event = json.loads(data)
                if error := event.get("error"):
                    message = error.get("message") if isinstance(error, dict) else error
                    return Asked(status, began, tuple(arrivals), error=str(message))
                if has_text(event):
                    arrivals.append(time.monotonic() - began)
                if event.get("usage"):
                    tokens = event["usage"]["completion_tokens"]
    except (httpx.HTTPError, json.JSONDecodeError) as error:
        return Asked(status, began, tuple(arrivals), error=type(error).__name__)
    # An answer may be empty: it came when it ended.
    arrivals = arrivals or [time.monotonic() - began]
    return Asked(status, began, tuple(arrivals), len(arrivals) if tokens is None else tokens)


def has_text(event: dict[str, Any]) -> bool:
    """Whether an event of a stream has text."""
    return any(
        choice.get("text") or (choice.get("delta") or {}).get("content")
        for choice in event.get("choices") or ()
    )
