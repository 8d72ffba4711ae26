"""Sparse feed-forward layer of Qwen3-MoE: the router in float32, only the chosen experts computed."""

from __future__ import annotations

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.config import TargetConfig

_INIT = nn.initializers.normal(0.02)


class SparseMLP(nn.Module):
    """Top-k mixture of gated feed-forward experts, computed with `jax.lax.ragged_dot` over rows sorted by expert."""

    config: TargetConfig

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        moe, width = self.config.moe, x.shape[-1]
        router = self.param("router", _INIT, (width, moe.num_experts))
        gate_up = self.param("gate_up", _INIT, (moe.num_experts, width, 2 * moe.expert_ffn_size))
        down = self.param("down", _INIT, (moe.num_experts, moe.expert_ffn_size, width))

        rows = x.reshape(-1, width)
        probs = jax.nn.softmax(rows.astype(jnp.float32) @ router.astype(jnp.float32), axis=-1)
        weight, expert = jax.lax.top_k(probs, moe.experts_per_token)
        if moe.normalize_weights:
            weight = weight / weight.sum(-1, keepdims=True)

        # One row per (token, chosen expert), grouped by expert: each expert's weights meet only its own rows.
        order = jnp.argsort(expert.reshape(-1), stable=True)
        source = order // moe.experts_per_token
        group_sizes = jnp.bincount(expert.reshape(-1), length=moe.num_experts).astype(jnp.int32)
        gate, up = jnp.split(jax.lax.ragged_dot(rows[source], gate_up, group_sizes), 2, axis=-1)
        out = jax.lax.ragged_dot(nn.silu(gate) * up, down, group_sizes)
        out = out * weight.reshape(-1)[order, None].astype(out.dtype)
        return jnp.zeros_like(rows).at[source].add(out).reshape(x.shape)
