"""Measure which panels are faster than XLA's own products of few rows on this processor, if any.

On some they halve the time of 4 rows, on others they take up to two fifths longer. One measurement
for a processor and a version of jax is kept on disk; `jaxspec check` times more rows and shapes.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.io.processor import describe_processor
from jaxspec.io.user_cache import user_cache
from jaxspec.targets.panels import TRANSPOSED, arrange, multiply_panels

# Outputs side by side that panels may have.
LANES = (TRANSPOSED, 8, 16, 32)
# As many rows as the rounds of the default verify on a CPU.
ROWS = (4, 8)
# Square matrices, 63 MB of float32, which few caches hold.
MATRICES, SIZE = 8, 1408
# Times that each product is timed, in turns; the fastest counts.
REPEATS = 5
# Raise it when a product is written in another way: processors are then measured again.
REVISION = 2


@functools.cache
def fastest_lanes() -> int:
    """Return the outputs side by side with which panels are fastest; 0 if XLA's product is faster.

    They are measured in a second, if no process did it before.
    """
    path = _find_path()
    try:
        return _choose(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):  # none is kept, or the file is damaged
        pass
    seconds = measure_products()
    # A cache that cannot be written costs a measurement per process, and nothing else.
    with contextlib.suppress(OSError):
        path.write_text(json.dumps({"processor": describe_processor(), **seconds}) + "\n")
    return _choose(seconds)


def _choose(seconds: Mapping[str, float]) -> int:
    best = min(LANES, key=lambda lanes: seconds[str(lanes)])
    return best if seconds[str(best)] < seconds["xla"] else 0


def measure_products() -> dict[str, float]:
    """Time products of `ROWS` rows by XLA and by panels.

    Returns:
      {"xla", and each of LANES: seconds of the products of all ROWS together}.
    """
    matrices = [jnp.full((SIZE, SIZE), 1e-3 * number) for number in range(1, MATRICES + 1)]
    ways: dict[str, tuple[Any, list[jax.Array]]] = {
        "xla": (jnp.dot, matrices),
        **{str(n): (multiply_panels, [arrange(one, n) for one in matrices]) for n in LANES},
    }
    timed = {
        (name, rows): (jnp.ones((rows, SIZE)), given)
        for name, (_, given) in ways.items()
        for rows in ROWS
    }
    programs = {
        (name, rows): jax.jit(functools.partial(_multiply_all, ways[name][0]))
        .lower(*given)
        .compile()
        for (name, rows), given in timed.items()
    }
    seconds = dict.fromkeys(timed, float("inf"))
    for _ in range(REPEATS):
        for key, given in timed.items():
            began = time.perf_counter()
            jax.block_until_ready(programs[key](*given))
            seconds[key] = min(seconds[key], time.perf_counter() - began)
    return {name: sum(seconds[name, rows] for rows in ROWS) for name in ways}


def _multiply_all(multiply: Any, x: jax.Array, matrices: list[Any]) -> jax.Array:
    """Multiply by one matrix after the other; each reads what the one before wrote."""
    for matrix in matrices:
        x = multiply(x, matrix)
    return x


def _find_path() -> Path:
    described = repr((describe_processor(), MATRICES, SIZE, ROWS, LANES, REVISION))
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    return user_cache("costs") / f"panels-jax{jax.__version__}-{digest}.json"
