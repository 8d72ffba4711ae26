"""One forward serves prefill, one-token decoding and tree verification: all must agree with the
full causal forward.
"""

from __future__ import annotations

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache

TOLERANCE = 2e-5
# One of each kind: the cache is the same code for all, and sparse layers are slow to compile.
each_kind = pytest.mark.parametrize(
    "golden", ["qwen3", "llama_scaled", "qwen3_moe_mixed"], indirect=True
)


@functools.partial(jax.jit, static_argnums=0)
def _apply(module, params, tokens, positions, cache, mask):
    return module.apply(
        params, tokens, positions, cache, mask, tuple(range(module.config.num_layers))
    )


def forward(golden, tokens, positions, cache=None, mask=None):
    tokens, positions = jnp.asarray(tokens, jnp.int32), jnp.asarray(positions, jnp.int32)
    return _apply(golden.module, golden.params, tokens, positions, cache, mask)


def prefill(golden, tokens, lengths, capacity=24) -> KVCache:
    """Cache of the first `lengths` tokens of each sequence, from one padded forward."""
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    out = forward(golden, tokens, positions)
    cache = allocate(golden.config, len(tokens), capacity, jnp.float32)
    # Rows that must never be read are poisoned, so that reading one shows.
    k, v = jax.tree.map(lambda rows: jnp.full_like(rows, 1e4), (cache.k, cache.v))
    poisoned = KVCache(k, v, cache.length)
    return append(poisoned, out.k, out.v, jnp.asarray(lengths, jnp.int32))


@each_kind
def test_one_token_at_a_time_equals_the_full_forward(golden):
    tokens = golden.expected["tokens"]
    full = forward(golden, tokens, np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape))
    # Ragged: the sequences enter decoding at different lengths.
    lengths = np.array([5, 7])
    cache = prefill(golden, tokens, lengths)
    for step in range(4):
        at = lengths + step
        out = forward(golden, np.take_along_axis(tokens, at[:, None], 1), at[:, None], cache)
        for name in ("hidden", "features"):
            got, want = np.asarray(getattr(out, name))[:, 0], np.asarray(getattr(full, name))
            np.testing.assert_allclose(got, want[np.arange(2), at], rtol=0, atol=TOLERANCE)
        cache = append(cache, out.k, out.v, jnp.ones(2, jnp.int32))


def ancestors(parent: list[int]) -> list[int]:
    """Mask words of a tree given by its parents, one word a row."""
    words: list[int] = []
    for row, above in enumerate(parent):
        words.append((words[above] if above >= 0 else 0) | 1 << row)
    return words


def path_to(row: int, parent: list[int]) -> list[int]:
    return [*path_to(parent[row], parent), row] if row >= 0 else []


@each_kind
def test_a_tree_forward_equals_each_path_alone(golden):
    parent = [-1, 0, 0, 1, 1, 3, 2]
    rows = np.arange(7)
    tokens = np.stack([3 + 5 * rows % 47, 40 - 3 * rows])
    depth = np.array([len(path_to(row, parent)) - 1 for row in rows])
    lengths = np.array([4, 9])
    cache = prefill(golden, golden.expected["tokens"], lengths)
    mask = jnp.broadcast_to(jnp.asarray(ancestors(parent), jnp.uint32)[None, :, None], (2, 7, 1))
    tree = forward(golden, tokens, lengths[:, None] + depth, cache, mask)
    for row in rows:
        path = path_to(row, parent)
        # Repeating the last row keeps one shape; causal rows do not see what follows them.
        padded = path + [row] * (4 - len(path))
        alone = forward(golden, tokens[:, padded], lengths[:, None] + np.arange(4), cache)
        for name in ("hidden", "features"):
            got, want = (
                np.asarray(getattr(tree, name))[:, path],
                np.asarray(getattr(alone, name))[:, : len(path)],
            )
            np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)
        got, want = np.asarray(tree.k[0])[:, :, path], np.asarray(alone.k[0])[:, :, : len(path)]
        np.testing.assert_allclose(got, want, rtol=0, atol=TOLERANCE)


@each_kind
def test_layers_of_one_kind_are_traced_once(golden):
    """With 36 layers, tracing each would take most of the time before XLA starts."""
    cache = allocate(golden.config, 2, 24, jnp.float32)
    rows = jnp.zeros((2, 1), jnp.int32)
    text = _apply.lower(golden.module, golden.params, rows, rows, cache, None).as_text()
    layers = golden.config.list_layers()
    assert text.count("func.func private @_run_alike") == len(set(layers))
    assert len(re.findall(r"call @_run_alike\w*\(", text)) == len(layers) > 1
