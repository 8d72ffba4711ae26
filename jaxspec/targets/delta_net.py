"""Gated delta nets: recurrent layers, whose trees are verified in one pass.

The projections, the convolution and the gated norm are those of transformers'
`Qwen3_5GatedDeltaNet`; `pallas_kernels.delta_rule` has the mathematics of the state.
"""

from __future__ import annotations

from typing import NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import DeltaConfig, LayerConfig
from jaxspec.core.recurrent import Stash, advance
from jaxspec.core.state import RecurrentState
from jaxspec.targets.linear import INIT, Linear, declare, multiply
from jaxspec.targets.mlp import choose_parts
from jaxspec.targets.norm import RMSNorm
from pallas_kernels.delta_rule import delta_rule
from pallas_kernels.reference import Norm, unpack_mask

# Rows of a prompt between which the state is computed: in a block, all rows see all others.
BLOCK = 64


class Lineage(NamedTuple):
    """The ancestors of T rows of a tree, for all recurrent layers of a forward pass.

    Attributes:
      seen: bool [B, T, T], whether row s is row t or an ancestor of it.
      depth: int32 [B, T], ancestors of each row.
      before: int32 [B, w - 1, T], the rows 1, 2, ... steps up from each row; -1 is the last
        committed row, -2 the one before it.
    """

    seen: jax.Array
    depth: jax.Array
    before: jax.Array

    @classmethod
    def of(cls, mask: jax.Array, steps: int) -> Lineage:
        """Unpack the mask uint32 [B, T, W] of a tree, whose rows are followed `steps` up."""
        seen = unpack_mask(mask, mask.shape[1])
        depth = seen.sum(-1, dtype=jnp.int32) - 1
        above = depth[:, None] - jnp.arange(1, steps + 1)[:, None]  # their depths
        there = seen[:, None] & (depth[:, None, None] == above[..., None])
        return cls(seen, depth, jnp.where(above < 0, above, jnp.argmax(there, axis=-1)))


class GatedDeltaNet(nn.Module):
    """A gated delta net over new rows, which follow a state and each other.

    It also returns what `jaxspec.core.recurrent.commit` needs of them.
    """

    config: LayerConfig

    def setup(self):
        c, delta = self.config, self.config.delta
        heads = delta.value_heads
        self.qkvz = Linear(delta.channels + heads * delta.value_dim)
        # Of few columns, and all of a state hangs on them: these are never quantised.
        self.beta_decay = declare(self, "beta_decay", (c.hidden_size, 2 * heads))
        self.conv = self.param("conv", INIT, (delta.channels, 1, delta.conv_width))
        self.a_log = self.param("a_log", nn.initializers.zeros, (heads,))
        self.dt_bias = self.param("dt_bias", nn.initializers.zeros, (heads,))
        self.norm = RMSNorm(Norm(c.norm_eps))
        self.out = Linear(c.hidden_size)

    def in_parts(
        self,
        x: jax.Array,
        lineage: Lineage | None,
        prefix: tuple[RecurrentState, int | jax.Array] | None,
    ) -> tuple[jax.Array, Stash]:
        """Run rows `x` [B, T, E].

        Args:
          lineage: their ancestors among them; None: they follow one another.
          prefix: states of a group of layers, and this layer's index there; None: the rows are the
            first of their texts.

        Returns:
          (the result [S, B, T, E], see `pallas_kernels.reference.add_parts`; of this layer alone).
        """
        delta, cached = self.config.delta, prefix is not None
        conv, s = _read_state(delta, prefix, x)
        rows, z = jnp.split(self.qkvz(x), [delta.channels], axis=-1)
        q, k, v = self._mix(conv, rows, lineage)
        b, a = jnp.split(multiply(x, self.beta_decay), 2, axis=-1)
        beta = jax.nn.sigmoid(b).astype(jnp.float32)
        rate = jnp.exp(self.a_log.astype(jnp.float32))
        step = jax.nn.softplus(a.astype(jnp.float32) + self.dt_bias.astype(jnp.float32))
        given = q, k, v, beta, -rate * step
        if lineage is None and x.shape[1] > BLOCK:
            read, u = run_blocks(*given, s)
        else:
            read, u = delta_rule(*given, s, *(lineage or ())[:2])
        normed = self.norm(read.astype(x.dtype)).astype(jnp.float32)
        gate = jax.nn.silu(z.astype(jnp.float32)).reshape(read.shape)
        out = (normed * gate).astype(x.dtype).reshape(*x.shape[:2], -1)
        parts = self.out(out, choose_parts(out, self.config.hidden_size, cached))
        return parts, Stash(rows, k, u, given[-1])

    def _mix(
        self, conv: jax.Array, rows: jax.Array, lineage: Lineage | None
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Convolve each row [B, T, C] with those before it on its path, and split it into heads.

        Returns:
          q, k [B, T, Hk, dk], normalised, and v [B, T, Hv, dv], float32.
        """
        delta, held, count = self.config.delta, conv.shape[1], rows.shape[1]
        table = jnp.concatenate([conv.astype(rows.dtype), rows], axis=1)
        weight = self.conv[:, 0].astype(jnp.float32)
        mixed = rows.astype(jnp.float32) * weight[:, -1]  # the last tap is the row's own
        for distance in range(1, delta.conv_width):
            if lineage is None:
                before = table[:, held - distance : held - distance + count]
            else:
                at = held + lineage.before[:, distance - 1]
                before = jnp.take_along_axis(table, at[..., None], axis=1)
            mixed = mixed + before.astype(jnp.float32) * weight[:, -1 - distance]
        mixed = jax.nn.silu(mixed.astype(rows.dtype)).astype(jnp.float32)
        width = delta.key_heads * delta.key_dim
        q, k, v = jnp.split(mixed, [width, 2 * width], axis=-1)
        q, k = (x.reshape(*x.shape[:2], delta.key_heads, -1) for x in (q, k))
        q, k = _normalize(q) * delta.key_dim**-0.5, _normalize(k)
        return q, k, v.reshape(*v.shape[:2], delta.value_heads, -1)


def run_blocks(q, k, v, beta, decay, s) -> tuple[jax.Array, jax.Array]:
    """Compute `delta_rule` of many rows that follow one another, a block of them at a time."""
    rows = q.shape[1]
    short = -rows % BLOCK

    def cut(x: jax.Array) -> jax.Array:
        x = jnp.pad(x, [(0, 0), (0, short)] + [(0, 0)] * (x.ndim - 2))
        return x.reshape(x.shape[0], -1, BLOCK, *x.shape[2:]).swapaxes(0, 1)

    def run(s: jax.Array, block: tuple) -> tuple:
        read, u = delta_rule(*block, s)
        whole = jnp.full(s.shape[0], BLOCK)
        return advance(s, block[1], u, block[-1], whole), (read, u)

    # Rows that only fill the last block decay nothing and write nothing.
    _, found = jax.lax.scan(run, s, tuple(map(cut, (q, k, v, beta, decay))))
    read, u = (x.swapaxes(0, 1).reshape(v.shape[0], -1, *v.shape[2:])[:, :rows] for x in found)
    return read, u


def _read_state(
    delta: DeltaConfig, prefix: tuple[RecurrentState, int | jax.Array] | None, x: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Return a layer's `conv` [B, w - 1, C] and `s` [B, Hv, dk, dv], zeros before all text."""
    if prefix is not None:
        state, index = prefix
        conv, s = (jax.lax.dynamic_index_in_dim(y, index, 0, False) for y in (state.conv, state.s))
        return conv, s
    conv = jnp.zeros((x.shape[0], delta.conv_width - 1, delta.channels), x.dtype)
    sizes = delta.value_heads, delta.key_dim, delta.value_dim
    return conv, jnp.zeros((x.shape[0], *sizes), jnp.float32)


def _normalize(x: jax.Array) -> jax.Array:
    return x * jax.lax.rsqrt(jnp.sum(x * x, axis=-1, keepdims=True) + 1e-6)
