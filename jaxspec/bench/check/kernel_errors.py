"""Compare the compiled attention kernels with a float32 reference at real shapes."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.tree import ancestor_words
from jaxspec.serve.on_device.packed_rows import pack
from pallas_kernels import reference, registry

KERNELS, INTERPRETED, REFERENCE = ("triton",), ("interpret",), "reference"
# Largest error, as a share of the largest value: the result itself is rounded to its dtype.
TOLERANCE = {"float32": 1e-5, "bfloat16": 1e-2, "float16": 2e-3}


class AttentionShape(NamedTuple):
    """Static sizes of a call of tree attention: T rows of B sequences over caches of S rows.

    With `counts`, that many rows of each sequence are packed, and T is the most. With a `window`,
    rows see so many positions, and heads have sinks, as gpt-oss's.
    """

    rows: int
    batch: int
    heads: int
    kv_heads: int
    dim: int
    dtype: str
    capacity: int
    counts: tuple[int, ...] = ()
    window: int | None = None

    def list_options(self) -> dict[str, Any]:
        """List the options of a call: the window, and sinks as high as scores of random rows."""
        sinks = None if self.window is None else jnp.linspace(-1, 3, self.heads)
        return {"window": self.window, "sinks": sinks}


def list_cases(real: bool) -> list[tuple[AttentionShape, tuple[tuple[int, ...], ...]]]:
    """List the sizes to compare, each with the lengths of its sequences.

    They are those of 8B models, from an empty cache to 32k, and batches of sequences of any length;
    or small ones for the interpreter.
    """
    if not real:
        lengths = ((0, 70), (128, 1))
        return [
            *((AttentionShape(rows, 2, 4, 2, 64, "float32", 128), lengths) for rows in (2, 20)),
            (AttentionShape(7, 2, 4, 2, 64, "float32", 128, (7, 2)), lengths),
            (AttentionShape(20, 2, 4, 2, 64, "float32", 128, window=16), lengths),
            (AttentionShape(7, 2, 4, 2, 64, "float32", 128, (7, 2), window=16), lengths),
        ]
    long, batch = 32_768, 8_192
    alone = tuple((length,) for length in (0, 1, 63, 64, 1024, 8192, long))
    ragged = ((5, 700, 0, 4100), (8192, 1, 64, 65))
    rows, dims = (2, 16, 33, 64, 256), (128, 64)
    mini = [AttentionShape(size, 1, 5, 1, 64, "float32", 2048) for size in (2, 33, 256)]
    cases = [
        (AttentionShape(size, 1, 32, 8, dim, "bfloat16", long), alone)
        for size, dim in itertools.product(rows, dims)
    ]
    cases += [(AttentionShape(size, 4, 32, 8, 128, "bfloat16", batch), ragged) for size in (2, 64)]
    for counts in ((1, 1, 1, 1), (64, 1, 0, 30), (5, 3, 64, 64)):
        cases.append(
            (AttentionShape(max(counts), 4, 32, 8, 128, "bfloat16", batch, counts), ragged)
        )
    gpt_oss = functools.partial(AttentionShape, dtype="bfloat16", window=128)
    cases += [(gpt_oss(size, 1, 64, 8, 64, capacity=long), alone) for size in (2, 64)]
    packed = gpt_oss(64, 4, 64, 8, 64, capacity=batch, counts=(64, 1, 0, 30))
    cases.append((packed, ragged))
    exact = [*(AttentionShape(size, 1, 32, 8, 128, "float32", 2048) for size in (2, 64)), *mini]
    return [*cases, *((shape, alone[:5]) for shape in exact)]


def measure_errors(shape: AttentionShape, lengths: tuple[int, ...], name: str) -> dict[str, Any]:
    """Compare an implementation with the float32 reference on random input, and with itself.

    Args:
      lengths: cached rows of each sequence.
      name: of an implementation in `pallas_kernels.registry`.

    Returns:
      `error`, the largest difference over the largest value; `same`, whether a second run gave the
      same bits; `finite`. What a kernel must not use is NaN, so using it shows.
    """
    given, exact = _draw(shape, lengths)
    program = _compile(shape, name)
    one, two = (np.asarray(program(*given), np.float32) for _ in range(2))
    with jax.default_matmul_precision("highest"):
        expected = np.asarray(_compile(shape, REFERENCE)(*exact))
    error = np.abs(one - expected).max() / max(np.abs(expected).max(), 1e-30)
    return {
        "error": float(error),
        "same": bool((one == two).all()),
        "finite": bool(np.isfinite(one).all()),
    }


@functools.lru_cache(maxsize=4)
def _compile(shape: AttentionShape, name: str) -> Callable[..., jax.Array]:
    if name == REFERENCE:
        function = reference.tree_attention
    else:
        with registry.using(name):
            function = registry.resolve_kernel(*_problem(shape))
    live = sum(shape.counts)

    def apply(q, k, v, positions, mask, cache_k, cache_v, length):
        rows, prefix = (q, k, v, positions), (cache_k, cache_v, 1, length, None)
        options = shape.list_options()
        if not shape.counts:
            return function(*rows, mask, prefix, **options)
        packing = pack(jnp.asarray(shape.counts, jnp.int32), _packed_rows(shape), shape.rows)
        at = packing.slot, packing.row
        if name == REFERENCE:
            return function(*rows, mask, prefix, **options)[at][:live]
        packed = (x[at][None] for x in rows)
        return function(*packed, mask, prefix, packing, **options)[0, :live]

    # A GPU's XLA would time the reference's products for longer than all kernels take.
    untimed = {"xla_gpu_autotune_level": 0} if jax.default_backend() == "gpu" else None
    return jax.jit(apply, compiler_options=untimed)


def _packed_rows(shape: AttentionShape) -> int:
    """Return R, with some rows of padding."""
    return 16 * (sum(shape.counts) // 16 + 1)


def check_kernels(real: bool) -> dict[str, Any]:
    """Compare the kernels with the reference.

    Args:
      real: compile them for this device; otherwise they run in Pallas' interpreter.

    Returns:
      {implementation: {"cases", "refused" (why, for how many sizes), "worst" error per dtype,
      "failed": the cases with an error above the tolerance, other bits in a second run, or values
      that are not finite}}.
    """
    found = {}
    for name in KERNELS if real else INTERPRETED:
        record = found[name] = {"cases": 0, "refused": {}, "worst": {}, "failed": []}
        for shape, several in list_cases(real):
            why = _refusal(shape, name)
            if why is not None:
                record["refused"][why] = record["refused"].get(why, 0) + 1
                continue
            for lengths in several:
                _add(record, shape, lengths, measure_errors(shape, lengths, name))
    return found


def _refusal(shape: AttentionShape, name: str) -> str | None:
    try:
        with registry.using(name):
            registry.explain(*_problem(shape))
    except ValueError as refused:
        return str(refused).rpartition(" here: ")[2]
    return None


def _add(
    record: dict[str, Any],
    shape: AttentionShape,
    lengths: tuple[int, ...],
    measured: dict[str, Any],
) -> None:
    record["cases"] += 1
    worst = record["worst"].get(shape.dtype, 0.0)
    record["worst"][shape.dtype] = max(worst, measured["error"])
    good = measured["error"] <= TOLERANCE[shape.dtype]  # false for NaN
    if not (good and measured["same"] and measured["finite"]):
        record["failed"].append(shape._asdict() | {"lengths": lengths} | measured)


def _problem(shape: AttentionShape) -> tuple[str, registry.Problem]:
    """Return the operation and its static shape."""
    operation, rows = "tree_attention", (shape.batch, shape.rows)
    if shape.counts:
        operation, rows = "packed_attention", (1, _packed_rows(shape))
    sizes = (*rows, shape.heads, shape.kv_heads, shape.dim)
    return operation, registry.Problem(*sizes, frozenset({shape.dtype}), shape.capacity)


def _draw(shape: AttentionShape, lengths: tuple[int, ...]) -> tuple[tuple, tuple]:
    """Draw the arguments of a call, rounded to its dtype, and the same in float32.

    Rows of the caches that are not live hold NaN, and zeros for the reference.
    """
    keys = jax.random.split(jax.random.key(sum(lengths) + shape.rows), 6)
    size, length = (shape.kv_heads, shape.dim), jnp.asarray(lengths, jnp.int32)

    def normal(key: jax.Array, *dims: int) -> jax.Array:
        return jax.random.normal(key, dims, jnp.float32).astype(shape.dtype)

    q = normal(keys[0], shape.batch, shape.rows, shape.heads, shape.dim)
    k, v = (normal(key, shape.batch, shape.rows, *size) for key in keys[1:3])
    caches = [
        normal(key, 2, shape.batch, shape.kv_heads, shape.capacity, shape.dim) for key in keys[3:5]
    ]
    live = jnp.arange(shape.capacity) < length[:, None]
    live = live[None, :, None, :, None] & (jnp.arange(2) == 1)[:, None, None, None, None]
    place = jnp.arange(shape.rows)  # every row's parent is any earlier one
    drawn = jax.random.uniform(keys[5], (shape.batch, shape.rows))
    parent = jnp.where(place > 0, jnp.floor(drawn * place), -1).astype(jnp.int32)
    positions = (length[:, None] + place).astype(jnp.int32)
    rest = (positions, jax.vmap(ancestor_words)(parent))
    poisoned = [jnp.where(live, cache, jnp.nan).astype(shape.dtype) for cache in caches]
    clean = [jnp.where(live, cache, 0).astype(jnp.float32) for cache in caches]
    exact = (*(x.astype(jnp.float32) for x in (q, k, v)), *rest, *clean, length)
    return (q, k, v, *rest, *poisoned, length), exact
