"""Prefill: run the prompts, let the drafter absorb them, and draw each first token."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.params import Params
from jaxspec.core.sampling import draw
from jaxspec.core.state import Accepted, DecodeState, Request
from jaxspec.core.tree import root_only
from jaxspec.drafters.base import Committed
from jaxspec.engine.grow import target_head
from jaxspec.engine.loop import is_stop, noise_at
from jaxspec.engine.plan import DecodeConfig, make_plan
from jaxspec.policies.protocol import Observation

# Prompt rows that one forward runs.
CHUNK = 512


@functools.partial(jax.jit, static_argnames=("config", "capacity", "max_tokens"))
def prefill(
    params: Params,
    request: Request,
    tokens: jax.Array,
    lengths: jax.Array,
    *,
    config: DecodeConfig,
    capacity: int,
    max_tokens: int,
    control=None,
) -> DecodeState:
    """Run the prompts and draw each first token.

    Args:
      control: the policy's state, None without a policy.
      tokens: int32 [B, P], prompts padded on the right; P up to CHUNK or a multiple of it. lengths:
        int32 [B].
      capacity: rows S of the caches, at least P and lengths + max_tokens + the larger of A and
        `plan.waiting`.
      max_tokens: room for generated tokens.
    """
    plan = make_plan(params.spec, config)
    cache, draft, last, features = _run_prompt(params, tokens, lengths, config, capacity)
    logits = plan.target.apply(params.target, last[:, None], method="logits")
    noise = noise_at(params, request, config, lengths, 1)
    first = draw(
        logits, noise, jnp.zeros((tokens.shape[0], 1), jnp.int32), config.sampling, request.sampling
    )[:, 0]
    buffer = jnp.zeros((tokens.shape[0], max_tokens + plan.longest), jnp.int32)
    zeros = jnp.zeros_like(lengths)
    block, control = None, plan.policy and plan.policy.resume(control)
    if plan.policy is not None and plan.policy.act.block is not None:
        seen = Observation(lengths, zeros == 0, logits=logits[:, 0])
        block = jnp.clip(plan.policy.act.block(request.controls, control, seen), 2, plan.longest)
    if plan.drafter:
        # What follows the prompt's last token is known only now.
        token = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)
        end = Committed(token, first[:, None], features[:, None], lengths - 1, zeros + 1)
        draft = plan.drafter.absorb(
            params.drafter(config.method), draft, target_head(params, config), end
        )
    return DecodeState(
        tokens=buffer.at[:, 0].set(first),
        emitted=zeros + 1,
        done=is_stop(first, request) | (request.limit <= 1),
        root=first,
        cache=cache,
        draft=draft,
        rounds=zeros,
        round_emitted=buffer,
        round_drafted=buffer,
        tree=root_only(first, plan.widths[-1]),
        accepted=Accepted(jnp.zeros((tokens.shape[0], plan.longest), jnp.int32), zeros, first),
        control=control,
        block=block,
        pending=_nothing_pending(features, plan.waiting) if plan.waiting else None,
        round_steps=None if plan.policy is None else buffer,
    )


def _run_prompt(params, tokens, lengths, config, capacity):
    """Caches of the target and the drafter after the prompts, and each last token's hidden state
    [B, E] and features [B, F].

    The drafter has absorbed all but the last token. Long prompts go through in chunks, so that
    attention scores take CHUNK * S floats a head instead of P * P.
    """
    plan = make_plan(params.spec, config)
    batch, width = tokens.shape
    layers = plan.drafter.feature_layers if plan.drafter else ()
    size = min(width, CHUNK)
    following = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))

    def feed(start, carry, prefix):
        cache, draft, *last = carry
        chunk, after = (
            jax.lax.dynamic_slice_in_dim(x, start, size, axis=1) for x in (tokens, following)
        )
        positions = jnp.broadcast_to(start + jnp.arange(size), chunk.shape)
        out = plan.target.apply(params.target, chunk, positions, prefix, feature_layers=layers)
        row = lengths - 1 - start
        here = ((row >= 0) & (row < size))[:, None]
        at = jnp.clip(row, 0, size - 1)[:, None, None]
        found = (jnp.take_along_axis(x, at, axis=1)[:, 0] for x in (out.hidden, out.features))
        last = [jnp.where(here, new, old) for new, old in zip(found, last, strict=True)]
        if plan.drafter:
            known = Committed(chunk, after, out.features, positions[:, 0], jnp.clip(row, 0, size))
            draft = plan.drafter.absorb(
                params.drafter(config.method), draft, target_head(params, config), known
            )
        return append(cache, out.k, out.v, jnp.clip(lengths - start, 0, size)), draft, *last

    dtype, hidden = params.dtype, params.spec.target.hidden_size
    cache = allocate(params.spec.target, batch, capacity, dtype)
    # Behind the barrier, for XLA would compute a drafter's attention over its empty cache while it
    # compiles, for seconds.
    draft = (
        jax.lax.optimization_barrier(plan.drafter.init(batch, capacity, dtype))
        if plan.drafter
        else None
    )
    carry = (
        cache,
        draft,
        jnp.zeros((batch, hidden), dtype),
        jnp.zeros((batch, len(layers) * hidden), dtype),
    )
    carry = feed(0, carry, None)
    if width == size:
        return carry
    return jax.lax.fori_loop(
        1, width // size, lambda i, carry: feed(i * size, carry, carry[0]), carry
    )


def _nothing_pending(features: jax.Array, rows: int) -> Committed:
    """An empty queue of `rows` rows for features like these [B, F]."""
    batch, zero = features.shape[0], jnp.zeros(features.shape[0], jnp.int32)
    tokens = jnp.zeros((batch, rows), jnp.int32)
    return Committed(
        tokens, tokens, jnp.zeros((batch, rows, features.shape[1]), features.dtype), zero, zero
    )
