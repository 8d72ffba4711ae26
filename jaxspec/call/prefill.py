"""Prefill: run the prompts, let the drafter absorb them, and draw each first token."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.cache import PartCache, SequenceCache, allocate, append
from jaxspec.core.params import Params
from jaxspec.core.sampling.penalties import count_generated, count_prompt
from jaxspec.core.sampling.sampling import draw
from jaxspec.core.state import Accepted, DecodeState, KVCache, Request
from jaxspec.core.tree import root_only
from jaxspec.drafters.base import Committed
from jaxspec.policies.protocol import Observation
from jaxspec.round.adjust_logits import adjust_target
from jaxspec.round.commit import is_stop, make_pending
from jaxspec.round.context import Round, make_round
from jaxspec.round.evidence import append_rows, init_evidence
from jaxspec.round.plan import DecodeConfig, Plan
from jaxspec.round.quick_jit import quick_jit
from jaxspec.round.sizes import prompt_chunk
from jaxspec.targets.sharding.state import place_cache, place_state
from jaxspec.targets.transformer import ForwardOutput
from pallas_kernels.registry import reads_places


@quick_jit(leave_out=True, static_argnames=("config", "capacity", "max_tokens"))
def prefill(
    params: Params,
    request: Request,
    tokens: jax.Array,
    lengths: jax.Array,
    control: Any = None,
    *,
    config: DecodeConfig,
    capacity: int,
    max_tokens: int,
) -> DecodeState:
    """Run the prompts and draw each first token.

    Args:
      tokens: int32 [B, S], prompts padded on the right.
      lengths: int32 [B]; with as many new tokens as the request's limit, they need at most
        `jaxspec.round.sizes.rows_needed` rows.
      control: the policy's state; None without a policy.
      capacity: rows S of the caches, a multiple of `prompt_chunk()`.
      max_tokens: room for generated tokens.
    """
    round = make_round(params, request, config)
    plan, batch = round.plan, tokens.shape[0]
    cache, draft, evidence, last, features = _run_prompts(round, tokens, lengths, capacity)
    logits, counts = round.target_head.unembed(last[:, None]), None
    if config.sampling.penalties:
        counts = count_prompt(tokens, lengths, logits.shape[-1])
    nothing = jnp.zeros(batch, jnp.int32)
    adjusted = adjust_target(round, logits, root_only(nothing, 1), counts, nothing, 0)
    noise = round.noise(lengths, 1)
    first = draw(adjusted, noise, nothing[:, None], config.sampling, request.sampling)[:, 0]
    if counts is not None:
        counts = count_generated(counts, first[:, None], nothing + 1)
    control = plan.policy and plan.policy.resume(control)
    block = _choose_block(round, control, lengths, logits[:, 0])
    if plan.drafter:
        # Only now is the token known that follows the prompt's last one.
        token = jnp.take_along_axis(tokens, lengths[:, None] - 1, axis=1)
        one = jnp.ones_like(lengths)
        end = Committed(token, first[:, None], features[:, None], lengths - 1, one)
        draft = _absorb(round, draft, end)
    state = begin_state(plan, first, cache, draft, max_tokens=max_tokens)
    if evidence is not None:
        empty = jnp.zeros(state.round_emitted.shape, bool)
        state = state.replace(evidence=evidence.replace(rejected=empty))
    state = state.replace(
        tokens=state.tokens.at[:, 0].set(first),
        done=is_stop(first, request) | (request.limit <= 1),
        control=control,
        block=block,
        counts=counts,
        pending=make_pending(features, plan.waiting) if plan.waiting else None,
    )
    return place_state(state)


def begin_state(
    plan: Plan, root: jax.Array, cache: KVCache, draft: Any = None, *, max_tokens: int
) -> DecodeState:
    """Make the state before the first round: one token is emitted, no sequence is done.

    The caches are used as they are. All other arrays are new and share no buffers, so that the
    state can be donated.

    Args:
      root: int32 [B], the last committed token, whose keys and values are not cached yet.
      cache: the target's cache of the tokens before the root.
      draft: the drafter's state; None without a drafter.
      max_tokens: room for generated tokens.
    """
    batch = root.shape[0]

    def zeros(*shape: int) -> jax.Array:
        return jnp.zeros((batch, *shape), jnp.int32)

    room = max_tokens + plan.longest
    return DecodeState(
        tokens=zeros(room),
        emitted=zeros() + 1,
        done=jnp.zeros(batch, bool),
        root=root,
        cache=cache,
        draft=draft,
        rounds=zeros(),
        round_emitted=zeros(room),
        round_drafted=zeros(room),
        tree=root_only(root, plan.widths[-1]),
        accepted=Accepted(zeros(plan.longest), zeros(), root + 0),
        round_steps=None if plan.policy is None else zeros(room),
    )


def _choose_block(
    round: Round, control: Any, lengths: jax.Array, logits: jax.Array
) -> jax.Array | None:
    """Let the policy choose the slots of each sequence's block, int32 [B]; None if it does not."""
    policy = round.plan.policy
    if policy is None or policy.act.block is None:
        return None
    seen = Observation(lengths, jnp.zeros_like(lengths) == 0, logits=logits)
    chosen = policy.act.block(round.request.controls, control, seen)
    return jnp.clip(chosen, 2, max(round.plan.blocks))


def _absorb(round: Round, draft: Any, committed: Committed) -> Any:
    return round.drafter.absorb(round.drafter_variables, draft, round.target_head, committed)


def _run_prompts(
    round: Round, tokens: jax.Array, lengths: jax.Array, capacity: int
) -> tuple[KVCache, Any, Any, jax.Array, jax.Array]:
    """Run the prompts through the target, one after the other.

    A chunk of one prompt already has enough rows to keep a device busy. Chunks of all prompts
    together would cost each of them as much as the longest one.

    Returns:
      (the target's cache, the drafter's state, the evidence or None, each last token's hidden state
      [B, E] and features [B, F]). The drafter has absorbed all but the last token.
    """
    batch = tokens.shape[0]
    cache = allocate(round.params.spec.target, batch, capacity, round.params.dtype)
    cache = place_cache(cache)
    if batch == 1:
        return _run_prompt(round, tokens, lengths, cache, 0)

    def run(b: jax.Array, carry: tuple) -> tuple:
        cache, *rest = carry
        one, length = (jax.lax.dynamic_slice_in_dim(x, b, 1) for x in (tokens, lengths))
        cache, *found = _run_prompt(round, one, length, cache, b)
        return cache, *jax.tree.map(functools.partial(_put, b), rest, found)

    empty = _empty_rest(round, batch, capacity)
    return jax.lax.fori_loop(0, batch, run, (cache, *empty))


def _put(b: jax.Array, batched: jax.Array, one: jax.Array) -> jax.Array:
    """Write the array of sequence `b` into the array of all; their shapes differ in one axis."""
    (axis,) = (i for i, size in enumerate(batched.shape) if size != one.shape[i])
    return jax.lax.dynamic_update_slice_in_dim(batched, one, b, axis)


def _run_prompt(
    round: Round, tokens: jax.Array, length: jax.Array, cache: KVCache, sequence: int | jax.Array
) -> tuple[KVCache, Any, Any, jax.Array, jax.Array]:
    """Run one prompt, a chunk of rows at a time.

    The number of chunks is traced, so one program serves prompts of all lengths.

    Args:
      tokens: int32 [1, S].
      length: int32 [1].
      cache: of all sequences; the rows of `sequence` are written.

    Returns:
      What `_run_prompts` does; all but the cache is of this sequence.
    """
    size = prompt_chunk()

    def feed(i: jax.Array, carry: tuple) -> tuple:
        (cache, draft, evidence, *last), row = carry, length - 1 - i * size
        cache, draft, out = feed_chunk(round, tokens, i * size, length, length - 1, cache, draft)
        here = (row < size)[:, None]
        at = jnp.minimum(row, size - 1)[:, None, None]
        found = (jnp.take_along_axis(x, at, axis=1)[:, 0] for x in (out.hidden, out.features))
        last = [jnp.where(here, new, old) for new, old in zip(found, last, strict=True)]
        if evidence is not None:
            start = jnp.broadcast_to(i * size, (1,))
            evidence = append_rows(evidence, out.features, out.hidden, start)
        return cache, draft, evidence, *last

    none = jnp.zeros_like(length)
    begin = hold_sequence(cache, none, jnp.asarray(sequence, jnp.int32))
    capacity = cache.capacity
    chunks = (length[0] + size - 1) // size
    filled, *rest = jax.lax.fori_loop(0, chunks, feed, (begin, *_empty_rest(round, 1, capacity)))
    lengths = cache.length.at[sequence].set(length[0])
    states = jax.tree.map(
        lambda whole, own: jax.lax.dynamic_update_slice_in_dim(whole, own, sequence, 1),
        cache.recurrent,
        filled.recurrent,
    )
    return KVCache(filled.k, filled.v, lengths, states), *rest


def hold_sequence(
    cache: KVCache, length: jax.Array, sequence: jax.Array
) -> SequenceCache | PartCache:
    """Hold one sequence of a cache in place, for the chunks of its prompt.

    States of recurrent layers are copied, since all of a state is written in every chunk.

    Args:
      length: int32 [1], its rows.
      sequence: int32 [], which one it is.
    """
    # On a CPU, XLA would copy a cache that changes its shape in a loop over chunks.
    kind = PartCache if reads_places() else SequenceCache
    states = jax.tree.map(
        lambda whole: jax.lax.dynamic_slice_in_dim(whole, sequence, 1, 1), cache.recurrent
    )
    return kind(cache.k, cache.v, length, sequence, states)


def feed_chunk(
    round: Round,
    tokens: jax.Array,
    start: jax.Array,
    length: jax.Array,
    known: jax.Array,
    cache: SequenceCache | PartCache,
    draft: Any,
) -> tuple[SequenceCache | PartCache, Any, ForwardOutput]:
    """Run `prompt_chunk()` tokens of one prompt and cache them.

    Args:
      tokens: int32 [1, S], the prompt; S is a multiple of the chunk.
      start: int32 [], the chunk's first token, a multiple of the chunk.
      length: int32 [1], tokens of the prompt to cache; the cache holds the first `start` of them.
      known: int32 [1], leading tokens of the prompt of which the next one is known too: the drafter
        absorbs these.
      cache: of the sequence.
      draft: the drafter's state, of this sequence alone; None without a drafter.

    Returns:
      (cache, drafter's state, what the target computes for the chunk).
    """
    size = prompt_chunk()
    following = jnp.pad(tokens[:, 1:], ((0, 0), (0, 1)))
    chunk, after = (
        jax.lax.dynamic_slice_in_dim(x, start, size, axis=1) for x in (tokens, following)
    )
    positions = start + jnp.arange(size)[None]
    out = round.target(chunk, positions, cache, feature_layers=round.feature_layers)
    if round.plan.drafter:
        count = jnp.clip(known - start, 0, size)
        draft = _absorb(round, draft, Committed(chunk, after, out.features, positions[:, 0], count))
    # All layers read the cache before it is written. If the write could come earlier, XLA would
    # copy the cache. So make it depend on the last layer, by lengths that never occur.
    after_reads = out.hidden[:, 0, 0].astype(jnp.int32)
    count = jnp.where(length < 0, after_reads, jnp.clip(length - start, 0, size))
    return append(cache, out.k, out.v, count, out.stash), draft, out


def _empty_rest(round: Round, batch: int, capacity: int) -> tuple[Any, Any, jax.Array, jax.Array]:
    """Make an empty state of the drafter, empty evidence or None, and zeros for the last token's
    hidden state and features.
    """
    params, drafter, dtype = round.params, round.plan.drafter, round.params.dtype
    hidden = params.spec.target.hidden_size
    # XLA would compute the drafter's attention over its empty cache while it compiles, which takes
    # seconds; the barrier hides that the cache is empty.
    draft = jax.lax.optimization_barrier(drafter.init(batch, capacity, dtype)) if drafter else None
    width = len(round.feature_layers) * hidden
    last = jnp.zeros((batch, hidden), dtype), jnp.zeros((batch, width), dtype)
    return draft, init_evidence(round, batch, 1), *last
