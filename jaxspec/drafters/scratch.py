"""Keys, values and outputs of the uncommitted slots that the steps of one round have computed.

Every slot is a row. A row sees the committed context, the rows on its path and itself. Rows are
discarded after the round.
"""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import Rows
from jaxspec.core.config import TransformerConfig


class Scratch(flax.struct.PyTreeNode):
    """R rows of B sequences, in the order in which the slots are computed.

    Attributes:
      k, v: of each group of layers [L, B, R, Kh, D], see `jaxspec.core.state`.
      hidden: [B, R, E], outputs; a row passes its output to the nodes that it proposes.
      visible: bool [B, R, R]; entry (i, j) says whether row i sees row j.
    """

    k: Rows
    v: Rows
    hidden: jax.Array
    visible: jax.Array

    def layer(self, index: int) -> tuple[jax.Array, jax.Array]:
        """Return keys and values [B, R, Kh, D] of a layer of a drafter whose layers are alike."""
        return self.k[0][index], self.v[0][index]


def empty(
    config: TransformerConfig, batch: int, rows: int, dtype: Any, width: int | None = None
) -> Scratch:
    """Make a scratch of rows that see nothing.

    Args:
      config: whose layers' keys and values it holds.
      width: E of the outputs (default: the config's).
    """
    hidden = jnp.zeros((batch, rows, width or config.hidden_size), dtype)
    visible, k, v = jnp.zeros((batch, rows, rows), bool), [], []
    for group in config.list_cache_groups():
        shape = len(group.layers), batch, rows, group.kv_heads
        k.append(jnp.zeros((*shape, group.head_dim), dtype))
        v.append(jnp.zeros((*shape, group.value_dim), dtype))
    return Scratch(tuple(k), tuple(v), hidden, visible)


def look(scratch: Scratch, source: jax.Array, slots: int, first: jax.Array) -> Scratch:
    """Fill in `visible` for the rows of a step.

    Args:
      source: int32 [B, M], the row that proposed each node.
      slots: K, number of rows of a node; each of them sees those before it.
      first: int32 [], the step's first row.
    """
    batch, nodes = source.shape
    path = jnp.take_along_axis(scratch.visible, source[..., None], axis=1)  # [B, M, R]
    rows = scratch.visible.shape[-1]
    begin = (
        first + slots * jnp.arange(nodes)[:, None, None]
    )  # [M, 1, 1], first of the node's own rows
    index = jnp.arange(rows)
    before = (index >= begin) & (index <= begin + jnp.arange(slots)[:, None])  # [M, K, R]
    seen = (path[:, :, None] | before).reshape(batch, nodes * slots, rows)
    return scratch.replace(
        visible=jax.lax.dynamic_update_slice(scratch.visible, seen, (0, first, 0))
    )


def pack_visible(scratch: Scratch, count: int, first: jax.Array) -> jax.Array:
    """Pack `visible` of `count` rows from `first` on: words uint32 [B, count, ceil(R / 32)]."""
    seen = jax.lax.dynamic_slice_in_dim(scratch.visible, first, count, axis=1)
    seen = jnp.pad(seen, ((0, 0), (0, 0), (0, -seen.shape[-1] % 32))).reshape(
        *seen.shape[:2], -1, 32
    )
    return (seen.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def write(scratch: Scratch, k: Rows, v: Rows, hidden: jax.Array, first: jax.Array) -> Scratch:
    """Write a step's keys and values, of each group [L, B, T, Kh, D], and outputs [B, T, E] at row
    `first`.
    """

    def put(rows: jax.Array, new: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(rows, new.astype(rows.dtype), (0, 0, first, 0, 0))

    return scratch.replace(
        k=jax.tree.map(put, scratch.k, k),
        v=jax.tree.map(put, scratch.v, v),
        hidden=jax.lax.dynamic_update_slice(
            scratch.hidden, hidden.astype(scratch.hidden.dtype), (0, first, 0)
        ),
    )
