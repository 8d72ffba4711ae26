"""Sparse feed-forward: of a layer's experts, only those that the router chooses are computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import LayerConfig
from jaxspec.core.mesh import MODEL
from jaxspec.targets.layouts.four_bits import unpack
from jaxspec.targets.layouts.quant import COLLECTION, FOUR_BITS, scaled
from jaxspec.targets.linear import INIT, Weights, declare
from jaxspec.targets.mlp import GatedMLP
from jaxspec.targets.norm import divide_by_size
from jaxspec.targets.router import choose_experts, score_experts
from pallas_kernels.experts import SILU, find_kernel
from pallas_kernels.reference import Gate, gate_units


class SparseMLP(nn.Module):
    """Top-k mixture of gated feed-forward experts, and an expert that all tokens use, if there is.

    Of experts that several devices hold, this computes those of one device, inside `jax.shard_map`:
    a part of the result, which the devices add up.
    """

    config: LayerConfig

    def in_parts(self, x: jax.Array, cached: bool, stream: jax.Array | None = None) -> jax.Array:
        """Compute the result as one part, see `GatedMLP.in_parts`.

        Args:
          stream: what the router reads in place of `x`, of experts beside a dense feed-forward.
        """
        return self(x, stream)[None]

    @nn.compact
    def __call__(self, x: jax.Array, stream: jax.Array | None = None) -> jax.Array:
        moe, width, zeros = self.config.moe, x.shape[-1], nn.initializers.zeros
        router = self.param("router", INIT, (width, moe.num_experts))
        own, ffn = moe.num_experts // moe.devices, moe.expert_ffn_size
        gate_up = declare(self, "gate_up", (own, width, 2 * ffn))
        down = declare(self, "down", (own, ffn, width))
        biases = None, None
        if moe.expert_bias:
            biases = (
                self.param("gate_up_bias", zeros, (own, 2 * ffn)),
                self.param("down_bias", zeros, (own, width)),
            )
        bias = self.param("router_bias", zeros, (moe.num_experts,)) if moe.router_bias else None
        correction = None
        if moe.score == "sigmoid":
            correction = self.param("correction", zeros, (moe.num_experts,))

        rows = routed = x.reshape(-1, width)
        if stream is not None:
            routed = divide_by_size(stream.reshape(-1, width), self.config.norm_eps)
            routed = routed * self.param("router_scale", nn.initializers.ones, (width,))
            routed = routed * jnp.asarray(width**-0.5, x.dtype)
        weight, expert = choose_experts(score_experts(routed, router, bias), moe, correction)
        if stream is not None:
            factor = self.param("expert_scale", nn.initializers.ones, (moe.num_experts,))
            weight = weight * factor[expert]
        if moe.devices > 1:
            expert -= jax.lax.axis_index(MODEL) * own
            expert = jnp.where((expert >= 0) & (expert < own), expert, own)
        gate = Gate(self.config.activation, moe.clamp)
        # One tile per step does not keep a GPU busy. More tiles cost copies of the experts'
        # weights.
        mix = _find_kernel(x, gate_up, down, gate, moe.devices > 1)
        mix = mix or functools.partial(
            jax.lax.platform_dependent,
            cpu=functools.partial(mix_experts, gate=gate, tiles_per_step=1),
            default=functools.partial(mix_experts, gate=gate, tiles_per_step=16),
        )
        arrays = gate_up.values, down.values, _scales(gate_up), _scales(down), *biases
        given = rows, expert, weight.astype(x.dtype), *arrays
        mixed = mix_with_gradient((mix, gate), *given).reshape(x.shape)
        return mixed + self._share(x) if moe.shared_ffn_size else mixed

    def _share(self, x: jax.Array) -> jax.Array:
        """Compute the result of the expert that all tokens use."""
        moe = self.config.moe
        config = dataclasses.replace(self.config, ffn_size=moe.shared_ffn_size)
        shared = GatedMLP(config, name="shared")(x)
        if not moe.shared_gate:
            return shared
        gate = self.param("shared_gate", INIT, (x.shape[-1], 1))
        return shared * nn.sigmoid(x @ gate)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def mix_with_gradient(how, rows, expert, weight, gate_up, down, *further):
    """Call one of the ways to compute `mix_experts`, so that it can be differentiated.

    Every way loops over as many tiles as are in use, and loops of unknown length have no
    reverse-mode derivative of their own. The gradient is of `rows`, `weight`, both kernels and
    their biases.

    Args:
      how: (the way, how units are gated).
      further: scales and biases, see `mix_experts`.

    Raises:
      ValueError: the experts' weights are quantised, and the gradient is asked for.
    """
    return how[0](rows, expert, weight, gate_up, down, *further)


def _mix_forward(how, rows, expert, weight, gate_up, down, *further):
    if further[0] is not None or further[1] is not None:
        raise ValueError("experts with quantised weights cannot be trained: load full weights")
    kept = rows, expert, weight, (gate_up, down, *further[2:])
    return how[0](rows, expert, weight, gate_up, down, *further), kept


def _mix_backward(how, kept, wanted: jax.Array):
    """Compute the gradient tile by tile, as `mix_experts` computes the result."""
    rows, expert, weight, kernels = kept
    pairs, order, tile_expert, tiles = _tiles(expert, kernels[0].shape[0], 1)
    width, last = rows.shape[1], expert.size - 1

    def tile(x, weight, gate_up, down, gate_up_bias, down_bias):
        gate, up = jnp.split(_add(x @ gate_up, gate_up_bias), 2, axis=-1)
        return weight[:, None] * _add(gate_units(gate, up, how[1]) @ down, down_bias)

    def step(i, sums):
        used, which = pairs[i] >= 0, tile_expert[i]
        pair = jnp.where(used, order[jnp.maximum(pairs[i], 0)], last)
        row, shown = pair // expert.shape[1], jnp.where(used, pair, expert.size)
        own = jax.tree.map(lambda array: array[which], kernels)
        inputs = rows[row], weight.reshape(-1)[pair], *own
        # An empty slot's part of the result is wanted nowhere, so it adds nothing.
        of_rows, of_weight, *of_kernels = jax.vjp(tile, *inputs)[1](
            jnp.where(used[:, None], wanted[row], 0)
        )
        added = jax.tree.map(
            lambda total, one: jax.lax.dynamic_update_index_in_dim(
                total, total[which] + one, which, 0
            ),
            sums[2],
            tuple(of_kernels),
        )
        by_pair = sums[0].at[shown].set(of_rows, mode="drop")
        return by_pair, sums[1].at[shown].set(of_weight, mode="drop"), added

    begun = jnp.zeros((expert.size, width), rows.dtype), jnp.zeros(expert.size, weight.dtype)
    begun += (jax.tree.map(jnp.zeros_like, kernels),)
    by_pair, of_weight, of_kernels = jax.lax.fori_loop(0, tiles, step, begun)
    of_rows = by_pair.reshape(*expert.shape, width).sum(1)
    kernels, biases = of_kernels[:2], of_kernels[2:]
    return of_rows, None, of_weight.reshape(expert.shape), *kernels, None, None, *biases


mix_with_gradient.defvjp(_mix_forward, _mix_backward)


def _add(x: jax.Array, bias: jax.Array | None) -> jax.Array:
    return x if bias is None else x + bias


def mix_experts(
    rows,
    expert,
    weight,
    gate_up,
    down,
    gate_up_scale=None,
    down_scale=None,
    gate_up_bias=None,
    down_bias=None,
    *,
    gate: Gate = SILU,
    tiles_per_step: int,
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
      gate_up_bias, down_bias: [X, 2F] and [X, E], or None.
      gate: how units are gated.
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
        both = _project(rows[row], gate_up, gate_up_scale, gate_up_bias, which)
        hidden = gate_units(*jnp.split(both, 2, axis=-1), gate)
        result = _project(hidden, down, down_scale, down_bias, which)
        return out.at[pair].set(result, mode="drop")

    # Every pair has its own place and sums have a fixed order, so the result depends neither on the
    # tiles nor on atomics.
    out = jnp.zeros((expert.size, rows.shape[1]), rows.dtype)
    out = jax.lax.fori_loop(0, -(-tiles // tiles_per_step), step, out)
    return (out.reshape(*expert.shape, -1) * weight[..., None]).sum(axis=1)


def _find_kernel(
    x: jax.Array, gate_up: Weights, down: Weights, gate: Gate, partial: bool
) -> Callable | None:
    """Return the kernel that mixes experts; None if XLA does."""
    four = [FOUR_BITS in one.added for one in (gate_up, down)]
    if any(four) and not all(four):
        return None
    sizes = (
        2 * one.values.shape[1] // _scales(one).shape[2] for one in (gate_up, down) if any(four)
    )
    return find_kernel(x.dtype, gate_up.values.dtype, gate, partial, min(sizes, default=0))


def _scales(weights: Weights) -> jax.Array | None:
    """Return the scales of experts in one byte or four bits; None of floats."""
    return weights.added.get(COLLECTION, weights.added.get(FOUR_BITS))


def _project(
    x: jax.Array,
    kernel: jax.Array,
    scale: jax.Array | None,
    bias: jax.Array | None,
    which: jax.Array,
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
        y = jnp.einsum("tmi,tio->tmo", x, picked)
    else:
        picked = picked.astype(x.dtype)
        sums = jnp.einsum("tmi,tio->tmo", x, picked, preferred_element_type=jnp.float32)
        y = scaled(sums, jnp.take(scale, which, axis=0)[:, None], x.dtype)
    return y if bias is None else y + jnp.take(bias, which, axis=0)[:, None]


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
