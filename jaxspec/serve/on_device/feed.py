"""Prefill: run chunks of a prompt straight into a slot."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import PartitionSpec

from jaxspec.call.prefill import feed_chunk, hold_sequence
from jaxspec.core.mesh import constrain
from jaxspec.core.params import Params
from jaxspec.core.state import KVCache
from jaxspec.round.evidence import append_rows
from jaxspec.round.plan import DecodeConfig
from jaxspec.round.quick_jit import quick_jit
from jaxspec.round.sizes import prompt_chunk
from jaxspec.serve.on_device.logprobs import make_ranked, rank_chunk
from jaxspec.serve.on_device.slot_evidence import put_rings, take_rings
from jaxspec.serve.on_device.slots import (
    SlotsState,
    make_slot_round,
    place_slots,
    put_slot,
    shapes_of_drafts,
    take_slot,
)


@quick_jit(leave_out=True, static_argnames=("config", "count"), donate_argnames=("state",))
def feed(
    params: Params,
    state: SlotsState,
    tokens: jax.Array,
    where: jax.Array,
    *,
    config: DecodeConfig,
    count: int = 0,
) -> tuple[SlotsState, jax.Array | None]:
    """Run chunks of a prompt into a slot whose sequence then ends before `root`.

    The number of chunks is traced, so one program serves all prompts. Nothing is drawn: the
    prompt's last token is the first round's root.

    Args:
      tokens: int32 [1, S], the prompt, padded to the capacity.
      where: int32 [4]: the slot; tokens that it already holds, a multiple of `prompt_chunk()`;
        tokens that it holds afterwards; the root.
      config: with the drafter that reads the prompt, whose state is that of all slots; or without
        one, and the state need not hold a drafter's arrays then.
      count: alternatives N of each token of the prompt to rank; 0: rank nothing.

    Returns:
      (the state; int32 [S, 2 + 2N] for `jaxspec.serve.on_device.logprobs`, whose row i is that of
      token i + 1 of the prompt, for each token i that was run. None if N is 0).
    """
    round, size = make_slot_round(params, config, None), prompt_chunk()
    decode, (slot, start, end, root) = state.decode, where
    unembed, following = round.target_head.unembed, jnp.append(tokens[0, 1:], 0)
    cache = decode.cache
    known = hold_sequence(cache, start[None], slot)
    draft = shapes = None
    if round.plan.drafter:
        shapes = shapes_of_drafts(params, config, cache.capacity)
        new = round.plan.drafter.init(1, cache.capacity, params.dtype)
        draft = _rewind(take_slot(decode.draft, shapes, slot), new, start, cache.capacity)

    evidence = state.evidence if config.evidence else None

    def run(i: jax.Array, carry: tuple) -> tuple:
        (cache, draft, broken, ranked, rings), at = carry, start + i * size
        cache, draft, out = feed_chunk(round, tokens, at, end[None], end[None], cache, draft)
        if ranked is not None:
            ranked = rank_chunk(unembed, out.hidden[0], following, ranked, at)
        if rings is not None:
            rings = append_rows(rings, out.features, out.hidden, at[None])
        return cache, draft, broken | ~jnp.isfinite(out.hidden).all(), ranked, rings

    empty = make_ranked(tokens.shape[1], count) if count else None
    rings = None if evidence is None else take_rings(evidence, slot)
    begin = known, draft, state.broken[slot], empty, rings
    chunks = (end - start + size - 1) // size
    filled, draft, broken, ranked, rings = jax.lax.fori_loop(0, chunks, run, begin)
    if evidence is not None:
        state = state.replace(evidence=put_rings(evidence, rings, slot, end))
    decode = decode.replace(
        cache=KVCache(filled.k, filled.v, cache.length.at[slot].set(end)),
        root=decode.root.at[slot].set(root),
    )
    if shapes is not None:
        pending = decode.pending
        decode = decode.replace(
            draft=put_slot(decode.draft, draft, shapes, slot),
            pending=pending.replace(count=pending.count.at[slot].set(0)),
        )
    broken = state.broken.at[slot].set(broken)
    calibration = state.calibration.forget(jnp.arange(broken.shape[0]) == slot)
    state = state.replace(decode=decode, broken=broken, calibration=calibration)
    # On every device, so that each of several processes can read it.
    return place_slots(state), None if ranked is None else constrain(ranked, PartitionSpec())


def _rewind(draft: Any, new: Any, length: jax.Array, capacity: int) -> Any:
    """Rewind the drafter's state of a slot to `length` int32 [] tokens.

    Caches keep their rows up to there; the others become zeros, because masks would keep a NaN. A
    cache has a number of rows per row of the target's. What else the state holds is of the last
    tokens: the next chunk replaces it, or it is that of a `new` state.
    """

    def rewind(part: Any, fresh: Any) -> Any:
        if not isinstance(part, KVCache):
            return jnp.where(length == 0, fresh, part)
        held = length * (part.capacity // capacity)
        kept = (jnp.arange(part.capacity) < held)[:, None]
        k, v = jax.tree.map(lambda rows: jnp.where(kept, rows, 0), (part.k, part.v))
        return KVCache(k, v, jnp.full_like(part.length, held))

    return jax.tree.map(rewind, draft, new, is_leaf=lambda part: isinstance(part, KVCache))
