"""Time ways to find the best tokens of a vocabulary, alone."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.report.table import tabulate
from jaxspec.cli.shared import options, parse
from jaxspec.core.runtime.clock import time_call
from jaxspec.core.sampling.top_k import top_k

EXAMPLE = "--rows 15 --vocabulary 151936 --counts 16,31,64"
TIMES, REPEATS = 10, 5
_WAYS: dict[str, Callable[[jax.Array, int], Any]] = {
    "jaxspec": top_k,
    "lax.top_k": jax.lax.top_k,
    "lax.approx_max_k": jax.lax.approx_max_k,
}


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    add, default = parser.add_argument, options.DEFAULT
    add("--rows", type=int, default=15, help=f"rows of logits {default}")
    add("--vocabulary", type=int, default=4096, help=f"logits of a row {default}")
    add(
        "--counts",
        type=parse.parse_counts,
        default=(16, 31),
        help="numbers of tokens to find (default: 16,31)",
    )
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    found = measure_top_k(arguments.rows, arguments.vocabulary, arguments.counts)
    rows = [(name, f"{one['us']:.1f}", one["exact"]) for name, one in found.items()]
    return found, tabulate(("way", "us", "exact"), rows).to_text()


def measure_top_k(rows: int, vocabulary: int, counts: tuple[int, ...]) -> dict[str, Any]:
    """Time each way for float32 [rows, vocabulary], in microseconds per call.

    Returns:
      {"way, k": {"us", "exact" (the same tokens as NumPy's sort)}}.
    """
    logits = jax.random.normal(jax.random.key(0), (rows, vocabulary))
    order = np.argsort(-np.asarray(logits), axis=-1, kind="stable")
    found = {}
    for count in counts:
        for name, function in _WAYS.items():
            program = jax.jit(functools.partial(_repeat, function, count))
            tokens, _ = program(logits)
            seconds = [time_call(program, logits)[1] for _ in range(REPEATS)]
            found[f"{name}, k={count}"] = {
                "us": 1e6 * float(np.median(seconds)) / TIMES,
                "exact": bool((np.asarray(tokens) == order[:, :count]).all()),
            }
    return found


def _repeat(function: Callable, count: int, logits: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Run a way several times in one program; each reads what the one before wrote."""

    def once(_: int, carry: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        logits, _ = carry
        best, token = function(logits, count)
        # Nothing changes, but the next call has to wait for this one.
        return logits.at[0, 0].add(jnp.where(best[0, 0] > jnp.inf, 1.0, 0.0)), token

    start = jnp.zeros((logits.shape[0], count), jnp.int32)
    logits, token = jax.lax.fori_loop(0, TIMES, once, (logits, start))
    return token, logits
