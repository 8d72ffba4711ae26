"""Measure which copies of weights are faster than XLA's own products of few rows, if any are.

On some processors they halve the time of 4 rows, on others they take up to two fifths longer. It
depends on the sizes of the matrices too: on an EPYC with AVX-512, panels of 32 outputs take four
fifths of the time of a transposed copy in layers of 320 inputs, and twice its time in layers of
4,096. So layers of the target's own sizes are timed. One measurement for a processor, these sizes
and a version of jax is kept on disk; `jaxspec check` times more numbers of rows.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.io.processor import describe_processor
from jaxspec.targets.layouts.copies import COPIES
from jaxspec.targets.layouts.layout import Layout
from jaxspec.tuner.store import Store

# Rounds of one sequence verify 4 rows by default, those of more sequences 8 or more. What is
# fastest for 4 rows may not be for 8.
FEW, MORE = 4, 8
# Bytes of weights that are timed, if the target has as many: more than most caches hold.
WEIGHT_BYTES = 48 * 2**20
# Times that each product is timed, in turns; the fastest counts.
REPEATS = 5
# Raise it when a product is written in another way: processors are then measured again.
REVISION = 3


class Sizes(NamedTuple):
    """What the time of a product depends on, besides the processor.

    Attributes:
      hidden, ffn: inputs and hidden units of a layer's feed-forward network.
      query, key: outputs of the projections to queries and to keys.
      layers: layers that are timed.
      rows: rows of the products.
    """

    hidden: int
    ffn: int
    query: int
    key: int
    layers: int
    rows: int

    def matrices(self) -> tuple[tuple[int, int], ...]:
        """Return the inputs and outputs of a layer's products, as the target merges them."""
        return (
            (self.hidden, self.query + 2 * self.key),
            (self.query, self.hidden),
            (self.hidden, 2 * self.ffn),
            (self.ffn, self.hidden),
        )


def choose_sizes(config: TargetConfig, rows: int) -> Sizes:
    """Choose what is timed for a target whose rounds have `rows` rows in all.

    Sparse layers count as dense ones of `ffn_size`; experts have no copies.
    """
    query, key = (n * config.head_dim for n in (config.num_heads, config.num_kv_heads))
    sizes = Sizes(config.hidden_size, config.ffn_size, query, key, 1, FEW if rows <= FEW else MORE)
    layer = 4 * sum(inputs * outputs for inputs, outputs in sizes.matrices())
    return sizes._replace(layers=min(config.num_layers, -(-WEIGHT_BYTES // layer)))


def find_fastest(sizes: Sizes, store: Store) -> int:
    """Return the outputs side by side of the fastest copies; 0 if XLA's product is faster.

    They are measured in a second or two, if no process did it before; 0 if the store is frozen.
    """
    path = store.find("layouts", tuple(sizes), tuple(COPIES), REVISION)
    try:
        return _choose(json.loads(path.read_text(encoding="utf-8")))
    except (OSError, ValueError, KeyError, TypeError):  # none is kept, or the file is damaged
        if store.frozen:
            return 0
    seconds = measure_layers(sizes)
    described = {"processor": describe_processor(), "sizes": sizes._asdict()}
    store.write(path, json.dumps({**described, "seconds": seconds}) + "\n")
    return _choose({"seconds": seconds})


def _choose(kept: Mapping[str, Any]) -> int:
    """Choose by the seconds that were measured; a target's sizes may not divide into all copies."""
    seconds = kept["seconds"]
    best = min(seconds, key=seconds.__getitem__)
    return 0 if seconds["xla"] <= seconds[best] else int(best)


def measure_layers(sizes: Sizes) -> dict[str, float]:
    """Time layers by XLA's products, and by those copies that the sizes divide into.

    Returns:
      {"xla", or the outputs side by side: seconds of all layers}.
    """
    layers = [
        [jnp.full(shape, 1e-3 * number) for shape in sizes.matrices()]
        for number in range(1, sizes.layers + 1)
    ]
    ways: dict[str, tuple[Any, Any]] = {"xla": (jnp.dot, layers)}
    for lanes, layout in COPIES.items():
        if all(outputs % lanes == 0 for _, outputs in sizes.matrices()):
            copied = [[layout.arrange(one, -2)[1] for one in layer] for layer in layers]
            ways[str(lanes)] = functools.partial(_multiply, layout), copied
    x = jnp.ones((sizes.rows, sizes.hidden))
    programs = {
        name: jax.jit(functools.partial(_run_layers, multiply, sizes)).lower(x, given).compile()
        for name, (multiply, given) in ways.items()
    }
    seconds = dict.fromkeys(ways, float("inf"))
    for _ in range(REPEATS):
        for name, (_, given) in ways.items():
            began = time.perf_counter()
            jax.block_until_ready(programs[name](x, given))
            seconds[name] = min(seconds[name], time.perf_counter() - began)
    return seconds


def _multiply(layout: Layout, x: jax.Array, copy: jax.Array) -> jax.Array:
    return layout.multiply(x, copy, copy, -2)


def _run_layers(multiply: Any, sizes: Sizes, x: jax.Array, layers: list[Any]) -> jax.Array:
    """Run layers without attention.

    What lies between the products counts: XLA runs it beside them, or has to wait.
    """
    for qkv, out, gate_and_up, down in layers:
        queries = multiply(_normalize(x), qkv)[:, : sizes.query]
        x = x + multiply(jnp.tanh(queries), out)
        gate, up = jnp.split(multiply(_normalize(x), gate_and_up), 2, axis=1)
        x = x + multiply(jax.nn.silu(gate) * up, down)
    return x


def _normalize(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.mean(x * x, axis=1, keepdims=True) + 1e-6)
