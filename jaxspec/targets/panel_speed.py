"""Measure which product of few rows is fastest on this processor.

Against XLA's own, panels halve the time of 4 rows on some and take a fifth longer on others
(`jaxspec.targets.panels`). One measurement for a processor and a version of jax is kept on disk.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.io.processor import describe_processor
from jaxspec.io.user_cache import user_cache
from jaxspec.targets.panels import arrange, multiply_columns, multiply_panels

# As many rows as the rounds of the default verify on a CPU.
ROWS = 4
# Square matrices, 64 MB of float32, which few caches hold.
MATRICES, SIZE = 16, 1024
# Times that each product is timed, in turns; the fastest counts.
REPEATS = 5
# Share of the time of XLA's own product that another way may take at most.
WORTH = 0.97


@functools.cache
def choose_way() -> str:
    """Return the way that is fastest here: `xla`, `panels` or `columns`.

    It is measured in half a second, if no process did it before.
    """
    path = _find_path()
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        return _choose({way: float(kept[way]) for way in ("xla", "panels", "columns")})
    except (OSError, ValueError, KeyError, TypeError):  # none is kept, or the file is damaged
        pass
    seconds = measure_products()
    # A cache that cannot be written costs a measurement per process, and nothing else.
    with contextlib.suppress(OSError):
        path.write_text(json.dumps({"processor": describe_processor(), **seconds}) + "\n")
    return _choose(seconds)


def _choose(seconds: dict[str, float]) -> str:
    best = min(seconds, key=lambda way: seconds[way])
    return best if seconds[best] < WORTH * seconds["xla"] else "xla"


def measure_products() -> dict[str, float]:
    """Time products of few rows in all ways: seconds by `xla`, `panels` and `columns`."""
    x = jnp.ones((ROWS, SIZE))
    matrices = [jnp.full((SIZE, SIZE), 1e-3 * number) for number in range(1, MATRICES + 1)]
    ways: dict[str, tuple[Any, list[jax.Array]]] = {
        "xla": (jnp.dot, matrices),
        "panels": (multiply_panels, [arrange(matrix) for matrix in matrices]),
        "columns": (multiply_columns, matrices),
    }
    programs = {
        name: jax.jit(functools.partial(_multiply_all, way)).lower(x, given).compile()
        for name, (way, given) in ways.items()
    }
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, (_, given) in ways.items():
            began = time.perf_counter()
            jax.block_until_ready(programs[name](x, given))
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds


def _multiply_all(multiply: Any, x: jax.Array, matrices: list[Any]) -> jax.Array:
    """Multiply by one matrix after the other; each reads what the one before wrote."""
    for matrix in matrices:
        x = multiply(x, matrix)
    return x


def _find_path() -> Path:
    described = repr((describe_processor(), MATRICES, SIZE, ROWS))
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    return user_cache("costs") / f"panels-jax{jax.__version__}-{digest}.json"
