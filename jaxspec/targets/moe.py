"""Sparse feed-forward layer of Qwen3-MoE: float32 router, and only the chosen experts computed."""

from __future__ import annotations

import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.core.mesh import MODEL
from jaxspec.targets.layouts.four_bits import unpack
from jaxspec.targets.layouts.quant import COLLECTION, FOUR_BITS, scaled
from jaxspec.targets.linear import INIT, Weights, declare
from pallas_kernels.experts import find_kernel


class SparseMLP(nn.Module):
    """Top-k mixture of gated feed-forward experts.

    Of experts that several devices hold, this computes those of one device, inside `jax.shard_map`:
    a part of the result, which the devices add up.
    """

    config: TargetConfig

    def in_parts(self, x: jax.Array, cached: bool) -> jax.Array:
        """Compute the result as one part, see `GatedMLP.in_parts`."""
        return self(x)[None]

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        moe, width = self.config.moe, x.shape[-1]
        router = self.param("router", INIT, (width, moe.num_experts))
        own = moe.num_experts // moe.devices
        gate_up = declare(self, "gate_up", (own, width, 2 * moe.expert_ffn_size))
        down = declare(self, "down", (own, moe.expert_ffn_size, width))

        rows = x.reshape(-1, width)
        # Use full precision: a GPU multiplies in TF32 by default, and a near-tie would then choose
        # another expert.
        scores = jnp.matmul(
            rows.astype(jnp.float32),
            router.astype(jnp.float32),
            precision=jax.lax.Precision.HIGHEST,
        )
        weight, expert = jax.lax.top_k(jax.nn.softmax(scores, axis=-1), moe.experts_per_token)
        if moe.normalize_weights:
            weight = weight / weight.sum(-1, keepdims=True)
        if moe.devices > 1:
            expert -= jax.lax.axis_index(MODEL) * own
            expert = jnp.where((expert >= 0) & (expert < own), expert, own)
        # One tile per step does not keep a GPU busy. More tiles cost copies of the experts'
        # weights.
        mix = _find_kernel(x, gate_up, down, moe.devices > 1) or functools.partial(
            jax.lax.platform_dependent,
            cpu=functools.partial(mix_experts, tiles_per_step=1),
            default=functools.partial(mix_experts, tiles_per_step=16),
        )
        arrays = gate_up.values, down.values, _scales(gate_up), _scales(down)
        return mix_with_gradient(mix, rows, expert, weight.astype(x.dtype), *arrays).reshape(
            x.shape
        )


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def mix_with_gradient(mix, rows, expert, weight, gate_up, down, gate_up_scale, down_scale):
    """Call `mix`, one of the ways to compute `mix_experts`, so that it can be differentiated.

    Every way loops over as many tiles as are in use, and loops of unknown length have no
    reverse-mode derivative of their own. The gradient is of `rows`, `weight` and both kernels.

    Raises:
      ValueError: the experts' weights are quantised, and the gradient is asked for.
    """
    return mix(rows, expert, weight, gate_up, down, gate_up_scale, down_scale)


def _mix_forward(mix, rows, expert, weight, gate_up, down, gate_up_scale, down_scale):
    if gate_up_scale is not None or down_scale is not None:
        raise ValueError("experts with quantised weights cannot be trained: load full weights")
    return mix(rows, expert, weight, gate_up, down), (rows, expert, weight, gate_up, down)


def _mix_backward(mix, kept, wanted: jax.Array):
    """Compute the gradient tile by tile, as `mix_experts` computes the result."""
    rows, expert, weight, gate_up, down = kept
    pairs, order, tile_expert, tiles = _tiles(expert, gate_up.shape[0], 1)
    width, last = rows.shape[1], expert.size - 1

    def tile(x, weight, gate_up, down):
        gate, up = jnp.split(x @ gate_up, 2, axis=-1)
        return weight[:, None] * ((nn.silu(gate) * up) @ down)

    def step(i, sums):
        used, which = pairs[i] >= 0, tile_expert[i]
        pair = jnp.where(used, order[jnp.maximum(pairs[i], 0)], last)
        row, shown = pair // expert.shape[1], jnp.where(used, pair, expert.size)
        inputs = rows[row], weight.reshape(-1)[pair], gate_up[which], down[which]
        # An empty slot's part of the result is wanted nowhere, so it adds nothing.
        of_rows, of_weight, *of_kernels = jax.vjp(tile, *inputs)[1](
            jnp.where(used[:, None], wanted[row], 0)
        )
        kernels = [
            jax.lax.dynamic_update_index_in_dim(total, total[which] + one, which, 0)
            for total, one in zip(sums[2:], of_kernels, strict=True)
        ]
        by_pair = sums[0].at[shown].set(of_rows, mode="drop")
        return by_pair, sums[1].at[shown].set(of_weight, mode="drop"), *kernels

    begun = jnp.zeros((expert.size, width), rows.dtype), jnp.zeros(expert.size, weight.dtype)
    begun += (jnp.zeros_like(gate_up), jnp.zeros_like(down))
    by_pair, of_weight, *kernels = jax.lax.fori_loop(0, tiles, step, begun)
    of_rows = by_pair.reshape(*expert.shape, width).sum(1)
    return of_rows, None, of_weight.reshape(expert.shape), *kernels, None, None


mix_with_gradient.defvjp(_mix_forward, _mix_backward)


def mix_experts(
    rows, expert, weight, gate_up, down, gate_up_scale=None, down_scale=None, *, tiles_per_step: int
) -> jax.Array:
    """Compute the weighted sum of each row's chosen experts.

    This serves where `pallas_kernels.experts` does not run. On CPUs and GPUs, `jax.lax.ragged_dot`
    multiplies every row by every expert and masks. Here the (row, choice) pairs are sorted by
    expert and cut into tiles of one expert each, and a loop runs over the tiles in use.

    Args:
      rows: [R, E].
      expert: int32 [R, k], chosen experts; choices of X count nothing.
      weight: [R, k] in the rows' dtype.
      gate_up: [X, E, 2F].
      down: [X, F, E].
      gate_up_scale, down_scale: [X, 2F] and [X, E] of quantised weights; [X, 2 or 1, G, …] of
        weights of four bits, which are uint8, see `jaxspec.targets.layouts.four_bits`.
      tiles_per_step: number of tiles multiplied as one batch.

    Returns:
      [R, E].
    """
    pairs, order, tile_expert, tiles = _tiles(expert, gate_up.shape[0], tiles_per_step)

    def step(i, out):
        picked = jax.lax.dynamic_slice_in_dim(pairs, i * tiles_per_step, tiles_per_step)
        which = jax.lax.dynamic_slice_in_dim(tile_expert, i * tiles_per_step, tiles_per_step)
        # Empty slots of a tile compute some pair again. Their index is outside of `out`, so
        # nothing is written.
        pair = jnp.where(picked < 0, expert.size, order[jnp.maximum(picked, 0)])
        row = jnp.minimum(pair, expert.size - 1) // expert.shape[1]
        gate, up = jnp.split(_project(rows[row], gate_up, gate_up_scale, which), 2, axis=-1)
        result = _project(nn.silu(gate) * up, down, down_scale, which)
        return out.at[pair].set(result, mode="drop")

    # Every pair has its own place and sums have a fixed order, so the result depends neither on the
    # tiles nor on atomics.
    out = jnp.zeros((expert.size, rows.shape[1]), rows.dtype)
    out = jax.lax.fori_loop(0, -(-tiles // tiles_per_step), step, out)
    return (out.reshape(*expert.shape, -1) * weight[..., None]).sum(axis=1)


def _find_kernel(x: jax.Array, gate_up: Weights, down: Weights, partial: bool) -> Callable | None:
    """Return the kernel that mixes experts; None if XLA does."""
    four = [FOUR_BITS in one.added for one in (gate_up, down)]
    if any(four) and not all(four):
        return None
    sizes = (
        2 * one.values.shape[1] // _scales(one).shape[2] for one in (gate_up, down) if any(four)
    )
    return find_kernel(x.dtype, gate_up.values.dtype, partial, min(sizes, default=0))


def _scales(weights: Weights) -> jax.Array | None:
    """Return the scales of experts in one byte or four bits; None of floats."""
    return weights.added.get(COLLECTION, weights.added.get(FOUR_BITS))


def _project(
    x: jax.Array, kernel: jax.Array, scale: jax.Array | None, which: jax.Array
) -> jax.Array:
    """Multiply `x` [tiles, m, in] by the kernel [X, in, out] of each tile's expert.

    Of four bits, only the experts of the tiles become floats.

    Returns:
      [tiles, m, out].
    """
    picked = jnp.take(kernel, which, axis=0)
    if kernel.dtype == jnp.uint8:
        picked = jax.vmap(unpack)(picked, jnp.take(scale, which, axis=0)).astype(x.dtype)
    if scale is None or kernel.dtype == jnp.uint8:
        return jnp.einsum("tmi,tio->tmo", x, picked)
    sums = jnp.einsum("tmi,tio->tmo", x, picked.astype(x.dtype), preferred_element_type=jnp.float32)
    return scaled(sums, jnp.take(scale, which, axis=0)[:, None], x.dtype)


def _tiles(expert: jax.Array, num_experts: int, multiple: int):
    """Cut the (row, choice) pairs into tiles of one expert each.

    Returns:
      pairs int32 [tiles, m] sorted by expert, as indices into `order`, -1 for empty slots; `order`;
      the expert of each tile [tiles]; the number of tiles in use.
    """
    count = expert.size
    # The number of pairs per expert if all are used equally. Longer tiles would be mostly empty;
    # shorter ones would read an expert's weights more than once.
    size = min(max(1, count // num_experts), 64)
    most = min(num_experts, count) + count // size
    most = -(-most // multiple) * multiple
    flat = expert.reshape(-1)
    order = jnp.argsort(flat, stable=True)
    group = jnp.bincount(flat, length=num_experts)
    first_pair = jnp.cumsum(group) - group
    group_tiles = -(-group // size)
    last_tile = jnp.cumsum(group_tiles)
    tile = jnp.arange(most)
    owner = jnp.minimum((tile[:, None] >= last_tile).sum(1), num_experts - 1)
    offset = (tile - (last_tile - group_tiles)[owner])[:, None] * size + jnp.arange(size)
    # Tiles beyond the last one belong to the last expert, after all of its pairs: they are unused.
    used = offset < group[owner][:, None]
    return jnp.where(used, first_pair[owner][:, None] + offset, -1), order, owner, last_tile[-1]
