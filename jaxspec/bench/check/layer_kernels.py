"""Compare the compiled kernels around a layer's products, and of trees, with their references."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.check.kernel_errors import TOLERANCE
from pallas_kernels import heads, reference, residual, smallest
from pallas_kernels.registry import using

NORM = reference.Norm(1e-6)
# Gemma's, whose weights are stored as w - 1.
CENTRED = reference.Norm(1e-6, centred=True, wide=True)
# Layers of `mini`, of an 8B model and of Gemma 3 12B: width, query and kv heads, their dimension,
# and how norms compute.
LAYERS = ((320, 5, 1, 64, NORM), (4096, 32, 8, 128, NORM), (3840, 16, 8, 256, CENTRED))

# A call of a kernel, the same of its reference, and the arguments of both.
Case = tuple[Callable[..., Any], Callable[..., Any], tuple[Any, ...]]


def check_layer_kernels(real: bool) -> dict[str, Any]:
    """Compare `split_heads`, `add_normalize` and `choose_smallest` with XLA's references.

    Args:
      real: compile them for this device; otherwise they run in Pallas' interpreter.

    Returns:
      {kernel: {"cases", "refused" (why, for how many), "worst" error per dtype, "failed": cases
      with an error above the tolerance or values that are not finite}}, as `check_kernels`.
    """
    found = {}
    with using(None if real else "interpret"):
        for name, make, shapes in _list(real):
            record = found[name] = {"cases": 0, "refused": {}, "worst": {}, "failed": []}
            for shape in shapes:
                case = make(*shape)
                if case is None:
                    why = "XLA computes this here"
                    record["refused"][why] = record["refused"].get(why, 0) + 1
                else:
                    _add(record, shape, *case)
    return found


def _list(real: bool) -> Iterator[tuple[str, Callable[..., Case | None], list[tuple]]]:
    layers, rows = (LAYERS, (1, 2, 64, 256)) if real else (LAYERS[:1], (20,))
    dtypes, parts = ("bfloat16", "float32"), (1, 8) if real else (8,)
    shapes = [
        (n, s, dtype, layer) for n in rows for s in parts for dtype in dtypes for layer in layers
    ]
    yield "split_heads", _split_heads, shapes
    yield "add_normalize", _add_normalize, shapes
    yield "choose_smallest", _choose_smallest, [(40, 31), (465, 63)] if real else [(40, 31)]


def _split_heads(rows: int, parts: int, dtype: str, layer: tuple) -> Case | None:
    _, queries, keys, dim, norm = layer
    kernel = heads.find_kernel(jnp.dtype(dtype), dim)
    joined, table = (
        _draw(0, (parts, 1, rows, (queries + 2 * keys) * dim)),
        _draw(1, (1, rows, 1, dim)),
    )
    scales = tuple(_draw(seed, (dim,), dtype) for seed in (2, 3))
    how = dict(sizes=(queries, keys, dim), norm=norm, dtype=jnp.dtype(dtype))
    given = joined, (table[..., : dim // 2], table[..., dim // 2 :]), scales
    return kernel and (
        functools.partial(kernel, **how),
        functools.partial(reference.split_heads, **how),
        given,
    )


def _add_normalize(rows: int, parts: int, dtype: str, layer: tuple) -> Case | None:
    width, norm, kernel = layer[0], layer[-1], residual.find_kernel(jnp.dtype(dtype))
    given = (
        _draw(0, (1, rows, width), dtype),
        _draw(1, (parts, 1, rows, width)),
        _draw(2, (width,), dtype),
    )
    return kernel and (
        functools.partial(kernel, norm=norm),
        functools.partial(reference.add_normalize, norm=norm),
        given,
    )


def _choose_smallest(entries: int, keep: int) -> Case | None:
    kernel = smallest.find_kernel()
    drawn = jax.random.randint(jax.random.key(0), (3, entries), 0, 9).astype(jnp.uint32)

    def sort(stacked: jax.Array) -> jax.Array:
        place = jnp.arange(entries, dtype=jnp.uint32)
        order = jnp.lexsort((place, stacked[1], stacked[0]))[:keep]
        return jnp.concatenate([stacked, place[None]])[:, order]

    return kernel and (functools.partial(kernel, count=2, keep=keep), sort, (drawn,))


def _draw(seed: int, shape: tuple[int, ...], dtype: str = "float32") -> jax.Array:
    return jax.random.normal(jax.random.key(seed), shape).astype(dtype)


def _add(record: dict[str, Any], shape: tuple, kernel: Any, expected: Any, given: tuple) -> None:
    """Compare the results of a case, the worst of several arrays."""
    error, finite, dtype = 0.0, True, ""
    for got, want in zip(*(_run(function, given) for function in (kernel, expected)), strict=True):
        dtype = str(got.dtype)
        one, other = (np.asarray(x, np.float64) for x in (got, want))
        scale = max(np.abs(other).max(), 1e-30)
        error = max(error, float(np.abs(one - other).max() / scale))
        finite = finite and bool(np.isfinite(one).all())
    record["cases"] += 1
    record["worst"][dtype] = max(record["worst"].get(dtype, 0.0), error)
    if not (error <= TOLERANCE.get(dtype, 0.0) and finite):  # also true for NaN
        record["failed"].append({"shape": shape, "error": error, "finite": finite})


def _run(function: Callable[..., Any], given: tuple) -> list[jax.Array]:
    return jax.tree.leaves(jax.jit(function)(*given))
