"""Time the products of a layer for few rows: XLA's own, and those of copies of weights on a CPU."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.cli.shared import options
from jaxspec.core.runtime.clock import order_turns, time_call
from jaxspec.targets.layouts.copies import COPIES, multiply_panels

EXAMPLE = "--json few_rows.json"
REPEATS = 7
ROWS = (1, 2, 4, 5, 8, 16)
# Inputs and outputs of the products of a layer of SmolLM2-135M, and layers that no cache holds.
SHAPES, LAYERS = ((576, 960), (576, 576), (576, 3072), (1536, 576)), 12

Product = Callable[[jax.Array, jax.Array], jax.Array]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    options.add_json_file(parser)


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Measure, and render a table."""
    found = measure_few_rows()
    return found, render_few_rows(found)


def measure_few_rows() -> dict[str, dict[str, dict[str, float]]]:
    """Time the products of `LAYERS` layers, float32, in turns.

    Returns:
      {"xla", or the outputs side by side in panels, 1 if transposed: {number of rows: {"ms": the
      median, "least_ms", "most_ms"}}}.
    """
    keys = iter(jax.random.split(jax.random.key(0), LAYERS * len(SHAPES)))
    matrices = [
        jax.random.normal(next(keys), s) / s[0] ** 0.5 for _ in range(LAYERS) for s in SHAPES
    ]
    ways: dict[str, tuple[Product, list[jax.Array]]] = {
        "xla": (jnp.dot, matrices),
        **{
            str(lanes): (multiply_panels, [layout.arrange(one, -2)[1] for one in matrices])
            for lanes, layout in COPIES.items()
        },
    }
    programs = {name: jax.jit(functools.partial(_multiply_all, ways[name][0])) for name in ways}
    found: dict[str, dict[str, dict[str, float]]] = {name: {} for name in ways}
    for rows in ROWS:
        # A single row never reads panels.
        seconds: dict[str, list[float]] = {name: [] for name in ways if rows > 1 or name == "xla"}
        for repeat in range(-1, REPEATS):
            for name in order_turns(list(seconds), 0, max(repeat, 0)):
                taken = time_call(programs[name], jnp.ones((rows, SHAPES[0][0])), ways[name][1])[1]
                seconds[name] += [taken] * (repeat >= 0)  # the first call compiles
        for name, times in seconds.items():
            figures = {"ms": np.median(times), "least_ms": min(times), "most_ms": max(times)}
            found[name][str(rows)] = {key: 1e3 * float(value) for key, value in figures.items()}
    return found


def _multiply_all(multiply: Product, x: jax.Array, matrices: Sequence[Any]) -> jax.Array:
    """Multiply by one matrix after the other; each reads what the one before wrote."""
    for matrix, (inputs, _) in zip(matrices, SHAPES * LAYERS, strict=True):
        given = jnp.resize(x, (x.shape[0], inputs)) if x.shape[1] < inputs else x[:, :inputs]
        x = multiply(given, matrix)
    return x


def render_few_rows(found: dict[str, dict[str, dict[str, float]]]) -> str:
    """Render what `measure_few_rows` found as a table of milliseconds."""
    names = {"xla": "XLA's product"} | {str(n): layout.name for n, layout in COPIES.items()}
    titles = [f"{names[lanes]}, ms" for lanes in found]
    columns = [Column("rows"), *(Column(title, fixed(1)) for title in titles)]
    rows = [[n, *(way.get(n, {}).get("ms") for way in found.values())] for n in found["xla"]]
    return Table(columns, rows).to_text()
