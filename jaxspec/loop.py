"""Prefill, round, loop: the only file that knows the order of the phases draft, grow, verify, accept, commit, absorb.

Plain autoregressive decoding is the same loop without a drafter: the tree is its root.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders import Builder, Rule, make_builder
from jaxspec.builders.candidates import entropy, rank
from jaxspec.builders.static import Paths, skips_ranks
from jaxspec.cache import allocate, append, gather_path
from jaxspec.drafters.base import Drafter, make_block_drafter
from jaxspec.params import Params, Spec
from jaxspec.sampling import SamplingSpec, draw, gumbel, process
from jaxspec.state import Accepted, Candidates, DecodeState, Request, Tree
from jaxspec.targets.transformer import Transformer
from jaxspec.tree import take_rows
from jaxspec.verify import accept_match, accept_rejection, accept_sequential, sample_candidates

ACCEPTANCE = ("match", "sequential", "rejection")

# Prompt rows that one forward of the prefill runs.
CHUNK = 512


@dataclasses.dataclass(frozen=True)
class DecodeConfig:
    """Static choices of a decode call; each distinct value is one compilation.

    Attributes:
      method: `ar`, or the name of a drafter.
      builder: `chain`, `best_first`, `expand`, `beam` or `static`.
      budget: rows verified in a round, the root included.
      block_size: slots of a drafter's block, the anchor included; None is the drafter's own.
      tree_width: children per expanded node of `expand`, nodes per level of `beam`.
      fanout: rule that gives nodes fewer children, see `builders.fanout` (`expand` only).
      paths: the tree of `static`, see `builders.make_paths`.
      score, entropy_weight: what paths are ordered by, see `builders.scores.Score`.
      sampling: which sampling steps exist.
      acceptance: `match` (draft-invariant), `sequential` or `rejection`.
      coupled: the drafter ranks its candidates under the target's noise (`match` at temperature > 0).
      score_temperature: divisor of the draft logits when paths are scored; None is the drafter's own.
    """

    method: str
    sampling: SamplingSpec
    builder: str = "best_first"
    budget: int = 32
    block_size: int | None = None
    tree_width: int | None = None
    fanout: str | Rule | None = None
    paths: Paths | None = None
    score: str = "logprob"
    entropy_weight: float | None = None
    acceptance: str = "match"
    coupled: bool = True
    score_temperature: float | None = None


class Plan(NamedTuple):
    """The bundles and static sizes that a DecodeConfig stands for.

    Attributes:
      widths: numbers of rows that verification is compiled for, ascending; the last is the tree's capacity.
      longest: most tokens that one round commits, A.
    """

    target: Transformer
    drafter: Drafter | None
    builder: Builder | None
    widths: tuple[int, ...]
    longest: int


class Verified(NamedTuple):
    """Outcome of the target's pass over a tree, reduced to the accepted path: what commit needs.

    Attributes:
      k, v: [L, B, A, K, D]; features: [B, A, F].
    """

    accepted: Accepted
    k: jax.Array
    v: jax.Array
    features: jax.Array


@functools.lru_cache(maxsize=256)
def make_plan(spec: Spec, config: DecodeConfig) -> Plan:
    """Resolve names to bundles; cached, so that equal settings never compile twice.

    Raises:
      ValueError: unknown method or builder, or a size out of range.
    """
    target = Transformer(spec.target)
    if config.method == "ar":
        return Plan(target, None, None, (1,), 1)
    block = spec.drafter(config.method)
    if config.block_size is not None:
        if not 2 <= config.block_size <= 128:
            raise ValueError(f"block_size is {config.block_size}: give 2 to 128, anchor included ({block.block_size} trained)")
        block = dataclasses.replace(block, block_size=config.block_size)
    builder = make_builder(
        config.builder,
        depth=block.depth,
        vocab_size=block.draft_vocab_size or spec.target.vocab_size,
        budget=config.budget,
        tree_width=config.tree_width,
        fanout=config.fanout,
        paths=config.paths,
        score=config.score,
        entropy_weight=config.entropy_weight,
    )
    if config.acceptance == "rejection" and config.paths and skips_ranks(config.paths):
        raise ValueError("acceptance 'rejection' needs siblings of ranks 0, 1, ...: a node in paths skips one")
    if builder.rows == 1:
        return Plan(target, None, None, (1,), 1)
    if block.causal and builder.longest < block.depth:
        # Slots of a causal head do not see later slots: those that the tree cannot hold need not be computed.
        block = dataclasses.replace(block, block_size=builder.longest + 1)
    return Plan(target, make_block_drafter(block), builder, _widths(builder.rows, config), builder.longest + 1)


def _widths(rows: int, config: DecodeConfig) -> tuple[int, ...]:
    """Verification widths: the capacity, and a quarter of it where trees may come out small.

    A restricted vocabulary (top-k, top-p, min-p) leaves a builder short of candidates, a fan-out rule of children; otherwise
    every tree is full, and a second width would be compiled for nothing.
    """
    sampling = config.sampling
    varies = sampling.top_k or sampling.top_p or sampling.min_p or config.fanout is not None
    return (-(-rows // 4), rows) if varies and rows >= 8 else (rows,)


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
) -> DecodeState:
    """Run the prompts and draw each first token.

    Args:
      tokens: int32 [B, P], prompts padded on the right; P up to CHUNK or a multiple of it. lengths: int32 [B].
      capacity: rows S of the caches, at least P and lengths + max_tokens + A.
      max_tokens: room for generated tokens.
    """
    plan = make_plan(params.spec, config)
    cache, draft, last = _run_prompt(params, tokens, lengths, config, capacity)
    logits = plan.target.apply(params.target, last[:, None], method="logits")
    noise = _noise(params, request, config, lengths, 1)
    first = draw(logits, noise, jnp.zeros((tokens.shape[0], 1), jnp.int32), config.sampling, request.sampling)[:, 0]
    buffer = jnp.zeros((tokens.shape[0], max_tokens + plan.longest), jnp.int32)
    zeros = jnp.zeros_like(lengths)
    return DecodeState(
        tokens=buffer.at[:, 0].set(first),
        emitted=zeros + 1,
        done=_is_stop(first, request) | (request.limit <= 1),
        root=first,
        cache=cache,
        draft=draft,
        rounds=zeros,
        round_emitted=buffer,
        round_drafted=buffer,
        tree=_root_only(first, plan.widths[-1]),
        accepted=Accepted(jnp.zeros((tokens.shape[0], plan.longest), jnp.int32), zeros, first),
    )


def _run_prompt(params, tokens, lengths, config, capacity):
    """Caches of the target and the drafter after the prompts, and the hidden state [B, E] of each prompt's last token.

    Long prompts go through in chunks, so that attention scores take CHUNK * S floats a head instead of P * P.
    """
    plan = make_plan(params.spec, config)
    batch, width = tokens.shape
    layers = plan.drafter.feature_layers if plan.drafter else ()
    size = min(width, CHUNK)

    def feed(start, carry, prefix):
        cache, draft, last = carry
        chunk = jax.lax.dynamic_slice_in_dim(tokens, start, size, axis=1)
        positions = jnp.broadcast_to(start + jnp.arange(size), chunk.shape)
        out = plan.target.apply(params.target, chunk, positions, prefix, feature_layers=layers)
        count = jnp.clip(lengths - start, 0, size)
        row = jnp.clip(lengths - 1 - start, 0, size - 1)
        hidden = jnp.take_along_axis(out.hidden, row[:, None, None], axis=1)[:, 0]
        if plan.drafter:
            draft = plan.drafter.absorb(params.drafters[config.method], draft, out.features, count)
        return append(cache, out.k, out.v, count), draft, jnp.where((count > 0)[:, None], hidden, last)

    dtype = params.target["params"]["embedding"].dtype
    cache = allocate(params.spec.target, batch, capacity, dtype)
    draft = plan.drafter.init(batch, capacity, dtype) if plan.drafter else None
    carry = feed(0, (cache, draft, jnp.zeros((batch, params.spec.target.hidden_size), dtype)), None)
    if width == size:
        return carry
    return jax.lax.fori_loop(1, width // size, lambda i, carry: feed(i * size, carry, carry[0]), carry)


@functools.partial(jax.jit, static_argnames=("config",), donate_argnames=("state",))
def run(params: Params, request: Request, state: DecodeState, max_rounds: jax.Array, *, config: DecodeConfig) -> DecodeState:
    """Up to `max_rounds` rounds, fewer when every sequence is done: one `lax.while_loop`, no host in it.

    `state` is donated: its caches are updated in place. Streaming calls this with one round at a time.
    """

    def unfinished(carry):
        state, count = carry
        return (count < max_rounds) & ~jnp.all(state.done)

    def body(carry):
        state, count = carry
        return decode_round(params, request, state, config), count + 1

    return jax.lax.while_loop(unfinished, body, (state, jnp.int32(0)))[0]


def decode_round(params: Params, request: Request, state: DecodeState, config: DecodeConfig) -> DecodeState:
    """One round: draft, grow, verify, accept, commit, absorb."""
    plan = make_plan(params.spec, config)
    noise = _noise(params, request, config, state.cache.length + 1, plan.longest)
    candidates, draft_logprob = draft(params, request, state, noise, config)
    tree = grow(params, state, candidates, config)
    verified = verify(params, request, state, tree, noise, draft_logprob, config)
    return commit(params, request, state, tree, verified, config)


def draft(params, request, state, noise, config) -> tuple[Candidates | None, jax.Array | None]:
    """The drafter's ranked candidates per depth; and its log-probabilities [B, depth, V] where acceptance needs them."""
    plan = make_plan(params.spec, config)
    if plan.drafter is None:
        return None, None
    target = functools.partial(plan.target.apply, params.target)
    logits = plan.drafter.expand(
        params.drafters[config.method],
        state.draft,
        functools.partial(target, method="embed"),
        functools.partial(target, method="logits"),
        state.root,
        plan.builder.longest,
    )
    count = plan.builder.candidates
    own = params.spec.drafter(config.method).score_temperature
    scoring = own if config.score_temperature is None else config.score_temperature
    if config.sampling.greedy:
        return rank(logits, count, None, scoring, plan.builder.entropy), None
    if config.acceptance == "rejection":
        position = state.cache.length
        drawn, q = sample_candidates(logits, count, config.sampling, request.sampling, request.keys, position)
        return drawn.replace(entropy=entropy(q) if plan.builder.entropy else None), q
    if config.acceptance == "match" and config.coupled:
        scores = process(logits, config.sampling, request.sampling)
        return rank(scores, count, noise[:, :-1], scoring, plan.builder.entropy), None
    return rank(process(logits, config.sampling, request.sampling), count, None, scoring, plan.builder.entropy), None


def grow(params, state, candidates, config) -> Tree:
    """The round's draft tree; without a drafter, and for finished sequences, its root alone."""
    plan = make_plan(params.spec, config)
    if candidates is None:
        return _root_only(state.root, 1)
    depth_limit = jnp.where(state.done, 0, plan.builder.longest)
    return plan.builder.build(candidates, state.root, depth_limit)


def verify(params, request, state, tree, noise, draft_logprob, config) -> Verified:
    """The target's pass over the smallest compiled width that holds every sequence's tree, and acceptance."""
    plan = make_plan(params.spec, config)

    def at_width(width):
        return lambda: _verify_rows(params, request, state, take_rows(tree, width), noise, draft_logprob, config)

    branches = [at_width(width) for width in plan.widths]
    if len(branches) == 1:
        return branches[0]()
    needed = jnp.max(tree.size)
    return jax.lax.switch(sum((needed > width).astype(jnp.int32) for width in plan.widths[:-1]), branches)


def _verify_rows(params, request, state, tree, noise, draft_logprob, config) -> Verified:
    plan = make_plan(params.spec, config)
    cache, longest = state.cache, plan.longest - 1
    layers = plan.drafter.feature_layers if plan.drafter else ()
    positions = cache.length[:, None] + tree.depth
    out = plan.target.apply(params.target, tree.token, positions, cache, tree.ancestors, feature_layers=layers)
    logits = plan.target.apply(params.target, out.hidden, method="logits")
    sampling, values = config.sampling, request.sampling
    if config.acceptance == "match" or sampling.greedy:
        accepted = accept_match(tree, draw(logits, noise, tree.depth, sampling, values), longest)
    elif config.acceptance == "sequential":
        accepted = accept_sequential(tree, logits, sampling, values, request.keys, cache.length, longest)
    else:
        accepted = accept_rejection(tree, logits, draft_logprob, sampling, values, request.keys, cache.length, longest)
    features = jnp.take_along_axis(out.features, accepted.path[..., None], axis=1)
    return Verified(accepted, gather_path(out.k, accepted.path), gather_path(out.v, accepted.path), features)


def commit(params, request, state, tree, verified, config) -> DecodeState:
    """Emit the accepted tokens up to a stop or the limit, cache their rows and let the drafter absorb their features.

    The last emitted token becomes the root, so as many rows are cached as tokens are emitted: nothing beyond a stop is
    emitted, counted or cached.
    """
    plan = make_plan(params.spec, config)
    accepted = verified.accepted
    slot = jnp.arange(plan.longest)
    # Token d of the round is the drafted token of path row d + 1, and after the path the bonus.
    following = jnp.roll(accepted.path, -1, axis=1)
    drafted = jnp.take_along_axis(tree.token, following, axis=1)
    new = jnp.where(slot < accepted.count[:, None] - 1, drafted, accepted.bonus[:, None])

    stops = _is_stop(new, request) & (slot < accepted.count[:, None])
    until_stop = jnp.where(stops.any(1), jnp.argmax(stops, axis=1) + 1, accepted.count)
    emit = jnp.minimum(until_stop, request.limit - state.emitted)
    emit = jnp.where(state.done, 0, emit)
    emitted = state.emitted + emit
    stopped = (stops & (slot < emit[:, None])).any(1)

    write = jax.vmap(lambda row, tokens, start: jax.lax.dynamic_update_slice_in_dim(row, tokens, start, axis=0))
    last = jnp.take_along_axis(new, jnp.maximum(emit - 1, 0)[:, None], axis=1)[:, 0]
    draft = state.draft
    if plan.drafter:
        draft = plan.drafter.absorb(params.drafters[config.method], draft, verified.features, emit)
    return state.replace(
        tokens=write(state.tokens, new, state.emitted),
        emitted=emitted,
        done=state.done | stopped | (emitted >= request.limit),
        root=jnp.where(emit > 0, last, state.root),
        cache=append(state.cache, verified.k, verified.v, emit),
        draft=draft,
        rounds=state.rounds + (emit > 0),
        round_emitted=write(state.round_emitted, emit[:, None], state.rounds),
        round_drafted=write(state.round_drafted, jnp.where(state.done, 0, tree.size - 1)[:, None], state.rounds),
        tree=tree,
        accepted=accepted.replace(count=emit),
    )


def _noise(params, request, config, position, count) -> jax.Array | None:
    """Gumbel noise float32 [B, count, V] of the tokens at absolute positions `position` [B] and on; None when greedy."""
    if config.sampling.greedy:
        return None
    return gumbel(request.keys, position[:, None] + jnp.arange(count), params.spec.target.vocab_size)


def _is_stop(tokens: jax.Array, request: Request) -> jax.Array:
    return (tokens[..., None] == request.stop).any(-1)


def _root_only(root: jax.Array, rows: int) -> Tree:
    """A tree of `rows` rows that holds nothing but its root."""
    shape = (root.shape[0], rows)
    row = jnp.broadcast_to(jnp.arange(rows, dtype=jnp.uint32), shape)
    words = jnp.arange(-(-rows // 32), dtype=jnp.uint32)
    return Tree(
        token=jnp.zeros(shape, jnp.int32).at[:, 0].set(root),
        parent=jnp.zeros(shape, jnp.int32).at[:, 0].set(-1),
        depth=jnp.zeros(shape, jnp.int32),
        ancestors=jnp.where(words == row[..., None] // 32, jnp.uint32(1) << (row[..., None] % 32), jnp.uint32(0)),
        logprob=jnp.full(shape, -jnp.inf, jnp.float32).at[:, 0].set(0.0),
        size=jnp.ones(root.shape[0], jnp.int32),
    )
