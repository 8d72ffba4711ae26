"""Count the least bytes and operations of the pieces of a round, and their time at measured
ceilings.

Bytes are counted once: weights, output projection included, and keys and values of the context.
Activations, logits, looked-up embedding rows and rereading are left out. Operations are those of
matrix products (two per multiplication) and of attention over the context.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, NamedTuple

import jax

from jaxspec.core.config import TransformerConfig
from jaxspec.core.params import Params
from jaxspec.costs.shared_roofline import expect_experts

# Modules of a block drafter that read the features of committed tokens instead of the block.
_INTAKE = re.compile(r"\['(fc|context_norm|kv|k_norm)'\]")
_EXPERTS = re.compile(r"\['(mlp|experts)'\]\['(gate_up|down)'\]$")


class Work(NamedTuple):
    """Bytes that must be read (or written) once, and floating-point operations."""

    bytes: float
    flops: float

    def __add__(self, other: Work) -> Work:
        return Work(self.bytes + other.bytes, self.flops + other.flops)


def floor_seconds(work: Work, bytes_per_second: float, flops_per_second: float) -> float:
    """Return the seconds of moving or of computing at the given rates, whichever is longer."""
    return max(work.bytes / bytes_per_second, work.flops / flops_per_second)


def count_target_forward(params: Params, *, batch: int, rows: int, context: int) -> Work:
    """Count a target's forward of `rows` rows per sequence over `context` cached tokens, with
    logits.

    Sparse layers count the experts that a router would touch on average if it chose uniformly, see
    `expect_experts`.

    Args:
      params: weights as arrays or shapes; quantised weights count at their stored size.
    """
    config, tokens, total = params.spec.target, batch * rows, Work(0, 0)
    for name, leaf in _leaves(params.target):
        if name == "['params']['embedding']" and not config.tie_embeddings:
            continue
        product = leaf.ndim > 1 and not name.startswith("['quant']")
        read, used = _bytes(leaf), 2 * leaf.size * tokens if product else 0
        if config.moe is not None and _EXPERTS.search(name):
            read *= expect_experts(config.moe, tokens) / config.moe.num_experts
            used *= config.moe.experts_per_token / config.moe.num_experts
        total += Work(read, used)
    return total + _attention(config, params.dtype, batch, rows, context)


def count_draft_forward(params: Params, name: str, *, batch: int, slots: int, context: int) -> Work:
    """Count a block drafter's forward of the anchor and `slots` tokens, with their logits."""
    config, tokens, total = params.spec.drafter(name), batch * (slots + 1), Work(0, 0)
    for path, leaf in _leaves(params.drafter(name)):
        # The same weights project keys and values of the block and of the context.
        if not _INTAKE.search(path) or "['kv']" in path or "['k_norm']" in path:
            total += Work(_bytes(leaf), 2 * leaf.size * tokens if leaf.ndim > 1 else 0)
    tied = params.spec.target.tie_embeddings
    for path, leaf in _leaves(params.target):
        if path.endswith("['embedding']" if tied else "['lm_head']"):
            total += Work(_bytes(leaf), 2 * leaf.size * batch * slots if leaf.ndim > 1 else 0)
    return total + _attention(config, params.dtype, batch, slots + 1, context)


def count_absorb(params: Params, name: str, *, batch: int, rows: int) -> Work:
    """Count a block drafter's `absorb` of `rows` committed rows.

    It fuses the features, then projects them to keys and values of every layer.
    """
    tokens, total = batch * rows, Work(0, 0)
    for path, leaf in _leaves(params.drafter(name)):
        if _INTAKE.search(path):
            total += Work(_bytes(leaf), 2 * leaf.size * tokens if leaf.ndim > 1 else 0)
    return total


def count_ranking(params: Params, *, batch: int, slots: int) -> Work:
    """Count one pass over the draft logits."""
    return Work(batch * slots * params.spec.target.vocab_size * params.dtype.itemsize, 0)


def count_commit(params: Params, *, batch: int, rows: int, feature_layers: int) -> Work:
    """Count the commit of `rows` rows of the path: each is read and written once."""
    config = params.spec.target
    row = (
        count_kv_bytes(config, params.dtype)
        + feature_layers * config.hidden_size * params.dtype.itemsize
    )
    return Work(2 * batch * rows * row, 0)


def count_attention(
    config: TransformerConfig, dtype, *, batch: int, rows: int, context: int
) -> Work:
    """Count one layer's attention over its context, without projections."""
    whole = _attention(config, dtype, batch, rows, context)
    return Work(whole.bytes / config.num_layers, whole.flops / config.num_layers)


def count_kv_bytes(config: TransformerConfig, dtype) -> int:
    """Count the bytes of keys and values of one cached token, over all layers."""
    groups = config.list_cache_groups()
    return dtype.itemsize * sum(len(group.layers) * group.count_numbers() for group in groups)


def _attention(config: TransformerConfig, dtype, batch: int, rows: int, context: int) -> Work:
    """Count attention of rows that see the whole context and themselves; the tree is left out."""
    wide = sum(c.num_heads * (c.head_dim + c.value_dim) for c in config.list_layers())
    used = 2 * wide * batch * rows * (context + 1)
    return Work(batch * context * count_kv_bytes(config, dtype), used)


def _leaves(tree: Any) -> Iterator[tuple[str, Any]]:
    for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
        yield jax.tree_util.keystr(path), leaf


def _bytes(leaf) -> int:
    return leaf.size * leaf.dtype.itemsize
