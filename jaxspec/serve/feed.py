"""Prefill: run chunks of a prompt straight into a slot."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.cache import SequenceCache
from jaxspec.core.params import Params
from jaxspec.core.state import KVCache
from jaxspec.engine.capacity import prompt_chunk
from jaxspec.engine.plan import DecodeConfig
from jaxspec.engine.prefill import feed_chunk
from jaxspec.serve.slots import SlotsState, make_slot_round, put_slot, take_slot


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def feed(
    params: Params,
    state: SlotsState,
    tokens: jax.Array,
    where: jax.Array,
    *,
    config: DecodeConfig,
) -> SlotsState:
    """Run chunks of a prompt into a slot whose sequence then ends before `root`.

    The number of chunks is traced, so one program serves all prompts. Nothing is drawn: the prompt's
    last token is the first round's root.

    Args:
      tokens: int32 [1, S], the prompt, padded to the capacity.
      where: int32 [4]: the slot; tokens that it already holds, a multiple of `prompt_chunk()`;
        tokens that it holds afterwards; the root.
    """
    round, size = make_slot_round(params, config, None), prompt_chunk()
    decode, (slot, start, end, root) = state.decode, where
    cache = decode.cache
    known = SequenceCache(cache.k, cache.v, start[None], slot)
    draft = empty = None
    if round.plan.drafter:
        init = functools.partial(round.plan.drafter.init, capacity=cache.k.shape[3])
        empty = tuple(jax.eval_shape(lambda n=n: init(n, dtype=params.dtype)) for n in (1, 2))
        new = jax.lax.optimization_barrier(init(1, dtype=params.dtype))
        draft = jax.tree.map(
            lambda fresh, old: jnp.where(start == 0, fresh, old),
            new,
            take_slot(decode.draft, empty, slot),
        )

    def run(i: jax.Array, carry: tuple[SequenceCache, Any]) -> tuple[SequenceCache, Any]:
        at = start + i * size
        return feed_chunk(round, tokens, at, end[None], end[None], *carry)[:2]

    filled, draft = jax.lax.fori_loop(0, (end - start + size - 1) // size, run, (known, draft))
    decode = decode.replace(
        cache=KVCache(filled.k, filled.v, cache.length.at[slot].set(end)),
        root=decode.root.at[slot].set(root),
    )
    if empty is not None:
        pending = decode.pending
        decode = decode.replace(
            draft=put_slot(decode.draft, draft, empty, slot),
            pending=pending.replace(count=pending.count.at[slot].set(0)),
        )
    return state.replace(decode=decode)
