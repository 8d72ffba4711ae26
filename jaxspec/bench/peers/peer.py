"""What a decoder in the comparison is, and what it reports."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable


@dataclasses.dataclass(frozen=True)
class PeerDecode:
    """One decode.

    Attributes:
      tokens: generated ids.
      seconds: wall-clock seconds of the whole decode, prefill included.
      decode_seconds: wall-clock seconds after the first tokens arrived.
      decode_tokens: tokens after the first ones.
    """

    tokens: tuple[int, ...]
    seconds: float
    decode_seconds: float
    decode_tokens: int


@dataclasses.dataclass(frozen=True)
class Peer:
    """A decoder in the comparison: its name, and a function token ids -> `PeerDecode`."""

    name: str
    decode: Callable[[list[int]], PeerDecode]


def count_threads() -> int:
    """Count the CPU cores that this process may use; XLA takes as many threads."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
