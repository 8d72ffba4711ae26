"""Name the processor of this machine, for measurements that depend on it."""

from __future__ import annotations

import functools
import os
import platform
from pathlib import Path

_LINUX = Path("/proc/cpuinfo")


@functools.cache
def describe_processor() -> str:
    """Return the processor's name and the cores that this process may use.

    JAX calls every processor `cpu`.
    """
    name = _read_name() or platform.processor() or platform.machine() or "unknown"
    return f"{name}, {_count_cores()} cores"


def _read_name() -> str:
    """Read family, model and name of the first core on Linux; "" where the system tells none.

    In virtual machines several models have the same name.
    """
    try:
        text = _LINUX.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    entries = dict(
        tuple(part.strip() for part in line.split(":", 1))
        for line in text.split("\n\n")[0].splitlines()
        if ":" in line
    )
    if "model name" not in entries:
        return ""
    numbers = (entries.get(key, "?") for key in ("cpu family", "model", "stepping"))
    return f"{entries['model name']} ({'/'.join(numbers)})"


def _count_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
