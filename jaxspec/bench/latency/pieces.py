"""The pieces of a round as separate programs, each a loop on the device.

Each program repeats one piece, so that many repetitions share dispatch and synchronisation. A
repetition depends on the one before through `state.root`: it computes a zero from it that the
compiler cannot predict. Otherwise XLA would compute what does not change once, before the loop.
Every repetition reads weights and caches again.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.acceptance import accept_match
from jaxspec.bench.measure.phases import PIECES, forward_drafter, forward_target
from jaxspec.builders import Builder
from jaxspec.call.prefill import begin_state
from jaxspec.core import cache
from jaxspec.core.params import Params
from jaxspec.core.sampling.sampling import draw
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.core.state import Candidates, DecodeState, KVCache, Request, Tree
from jaxspec.drafters.base import Committed
from jaxspec.drafters.registry import record_of
from jaxspec.round.commit import absorb, commit
from jaxspec.round.context import Round, make_round
from jaxspec.round.draft import draft
from jaxspec.round.plan import DecodeConfig, Plan, make_plan
from jaxspec.round.proposals import limit_depth, rank_candidates
from jaxspec.round.quick_jit import quick_jit
from jaxspec.round.verify import TargetPass, keep_path


class TreeMethod(NamedTuple):
    """How rounds draft.

    Attributes:
      drafter: its name.
      builder: of the trees; None is the drafter's default.
      depth: longest drafted path; None is the drafter's own.
    """

    drafter: str
    builder: Builder | None = None
    depth: int | None = None


class Forwarded(NamedTuple):
    """A verified tree, the input of acceptance and commit.

    Attributes:
      tree: the tree.
      token: int32 [B, N], the target's token after each row.
      passed: the rest of the target's pass over the tree.
    """

    tree: Tree
    token: jax.Array
    passed: TargetPass


def make_tree_config(method: TreeMethod, rows: int) -> DecodeConfig:
    """Configure greedy decoding with trees of `rows` rows; one row is autoregressive."""
    sampling = make_sampling()[0]
    if rows == 1:
        return DecodeConfig("ar", sampling)
    drafter, builder, depth = method
    return DecodeConfig(drafter, sampling, builder=builder, budget=rows, depth=depth)


def list_pieces(plan: Plan) -> tuple[str, ...]:
    """List the pieces of a round; a tree that grows with its drafter is ranked while it drafts."""
    return tuple(name for name in PIECES if name != "rank" or not grows(plan))


def grows(plan: Plan) -> bool:
    """Whether trees grow while the drafter runs."""
    return plan.growth is not None and plan.growth.steps > 0


def make_request(batch: int) -> Request:
    """Make a request that never stops."""
    return Request(
        limit=jnp.full(batch, 2**30, jnp.int32),
        stop=jnp.full(1, -1, jnp.int32),
        seed=jnp.int32(0),
        sequence=jnp.arange(batch, dtype=jnp.uint32),
        sampling=make_sampling()[1],
    )


@functools.partial(jax.jit, static_argnames=("config", "batch", "capacity", "dtype"))
def make_random_cache(config, batch: int, capacity: int, dtype) -> KVCache:
    """Make a cache of random rows, the same in every layer; its length is 0."""
    empty = jax.eval_shape(functools.partial(cache.allocate, config, batch, capacity, dtype))

    def draw(number: int, rows: jax.ShapeDtypeStruct) -> jax.Array:
        drawn = jax.random.normal(jax.random.key(number), rows.shape[1:], dtype)
        return jnp.broadcast_to(drawn, rows.shape)

    k, v = (
        jax.tree.map(functools.partial(draw, i), rows) for i, rows in enumerate((empty.k, empty.v))
    )
    return KVCache(k, v, jnp.zeros(batch, jnp.int32))


def make_random_draft(params: Params, drafter: str, batch: int, capacity: int) -> Any:
    """Make a drafter's state of random rows, its caches the same in every layer; lengths are 0."""
    config = params.spec.drafter(drafter)
    init = record_of(config).make(config).init

    @jax.jit
    def fill():
        leaves, tree = jax.tree.flatten(init(batch, capacity, params.dtype))
        found = []
        for number, leaf in enumerate(leaves):
            if jnp.issubdtype(leaf.dtype, jnp.floating):
                shape = leaf.shape[1:] if leaf.ndim == 5 else leaf.shape
                drawn = jax.random.normal(jax.random.key(number), shape, leaf.dtype)
                leaf = jnp.broadcast_to(drawn, leaf.shape)
            found.append(leaf)
        return jax.tree.unflatten(tree, found)

    return fill()


def find_cache(draft: Any) -> KVCache:
    """Find the keys and values of a drafter's state."""
    return draft if isinstance(draft, KVCache) else draft.cache


def renew_draft(draft: Any, length: jax.Array, zero: jax.Array | None = None) -> Any:
    """Set the length int32 [B] of a drafter's cache, and make its other arrays depend on `zero`."""
    if isinstance(draft, KVCache):
        return draft.replace(length=length)

    def depend(leaf):
        return leaf if zero is None else leaf + zero.sum().astype(leaf.dtype)

    return jax.tree.map(depend, draft).replace(cache=draft.cache.replace(length=length))


def make_state(
    params: Params,
    config: DecodeConfig,
    target: KVCache,
    draft: Any,
    context: int,
    room: int,
) -> DecodeState:
    """Make a state in mid-decode after `context` tokens, with room for `room` more.

    The caches are not copied. The state may be donated.

    Args:
      draft: from `make_random_draft`, or None.
    """
    plan, batch = make_plan(params.spec, config), target.batch
    root, length = (jnp.full(batch, value, jnp.int32) for value in (1, context))
    own = None
    if plan.drafter is not None and draft is not None:
        # Rows of the drafter's cache per token. Rounds write the root and both lengths, so each
        # needs its own buffer.
        rows = find_cache(draft).capacity // target.capacity
        own = renew_draft(draft, jnp.full(batch, context * rows, jnp.int32))
    return begin_state(plan, root, target.replace(length=length), own, max_tokens=room)


def make_input(piece: str, params: Params, config: DecodeConfig, batch: int) -> Any:
    """Make the input of `rank` or `tree`: random logits, or candidates of falling probability."""
    plan, vocab = make_plan(params.spec, config), params.spec.target.vocab_size
    longest, key = plan.growth.longest, jax.random.key(7)
    if piece == "rank":
        return 2 * jax.random.normal(key, (batch, longest, vocab), params.dtype)
    shape = (batch, longest, plan.growth.candidates)
    token = jax.random.randint(key, shape, 0, vocab)
    weight = (1.0 + jnp.arange(shape[2])) ** -(1.2 + 0.6 * jax.random.uniform(key, (*shape[:2], 1)))
    return Candidates(token.astype(jnp.int32), jnp.log(weight / weight.sum(-1, keepdims=True)))


def repeat_piece(
    piece: str, params: Params, request: Request, config: DecodeConfig, times: int
) -> Callable:
    """Make a jitted program that runs `piece` `times` times on `given`.

    Its form is `(params, request, state, given) -> (state, result)`; `state` is donated. The result
    of a piece is the input of the next one of `list_pieces`; `draft` returns logits [B, depth, V],
    or what has grown, and the steps that it took.
    """

    def step(params, request, state, given):
        return _STEPS[piece](make_round(params, request, config), state, given)

    @quick_jit(donate_argnums=2)
    def run(params, request, state, given):
        context = state.cache.length
        drafted = None if state.draft is None else find_cache(state.draft).length

        def body(_, carry):
            state, given, _ = carry
            state, result = step(params, request, _renewed(state, context, drafted), given)
            return state, given, result

        out = jax.eval_shape(step, params, request, state, given)[1]
        carry = (state, given, jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), out))
        state, _, result = jax.lax.fori_loop(0, times, body, carry)
        return state, result

    return run


def _renewed(state: DecodeState, context: jax.Array, drafted: jax.Array | None) -> DecodeState:
    """Reset the state to before the first round, in a way that depends on the last repetition."""
    zero = _zero(state)
    own = None if drafted is None else renew_draft(state.draft, drafted + zero, zero)
    counts = dict(emitted=1 + zero, rounds=zero, done=zero < 0)
    return state.replace(cache=state.cache.replace(length=context + zero), draft=own, **counts)


def _zero(state: DecodeState) -> jax.Array:
    """Compute zeros int32 [B] from the state; they are zeros because roots are not negative."""
    return jnp.minimum(state.root, 0)


def _after(state: DecodeState, tree):
    """Make the arrays of `tree` depend on `state`, without changing them."""
    return jax.tree.map(lambda x: x + _zero(state).sum().astype(x.dtype), tree)


def _draft(round: Round, state: DecodeState, given: Any):
    if grows(round.plan):
        drafted = draft(round, state, None)
        return state.replace(root=drafted.pool.token.max(1)), (drafted.grown, drafted.steps)
    logits = forward_drafter(round, state)
    return state.replace(root=(logits[:, -1, 0] > 0).astype(jnp.int32)), logits


def _rank(round: Round, state: DecodeState, logits: jax.Array):
    candidates, _ = rank_candidates(round, state, None, _after(state, logits), 0)
    # Not an element of it: with a slice of a slice XLA would not recognise the lowered top-k.
    return state.replace(root=candidates.token.max((1, 2))), candidates


def _tree(round: Round, state: DecodeState, given: Any):
    given, growth = _after(state, given), round.plan.growth
    if growth.steps:
        tree = jax.vmap(growth.finish)(given[0], state.root)
    else:
        tree = growth.build(given, state.root, limit_depth(round, state))
    return state.replace(root=tree.token[:, -1]), tree


def _verify(round: Round, state: DecodeState, tree: Tree):
    now = _after(state, tree)
    passed, logits = forward_target(round, state, now)
    token = draw(logits, None, now.depth, round.config.sampling, round.request.sampling)
    return state.replace(root=token[:, -1]), Forwarded(tree, token, passed)


def _commit(round: Round, state: DecodeState, given: Forwarded):
    tree, token = _after(state, (given.tree, given.token))
    accepted = accept_match(tree, token, round.plan.longest - 1)
    return commit(round, state, tree, keep_path(given.passed, accepted))


def _absorb(round: Round, state: DecodeState, committed: Committed):
    features = _after(state, committed.features)
    new = committed.replace(features=features, position=state.cache.length, count=1 + _zero(state))
    state = absorb(round, state, new)
    # The whole cache counts as written, whichever row is read.
    root = jnp.isnan(find_cache(state.draft).k[-1][-1, :, -1, 0, 0]).astype(jnp.int32)
    return state.replace(root=root), committed


_STEPS = {
    "draft": _draft,
    "rank": _rank,
    "tree": _tree,
    "verify": _verify,
    "commit": _commit,
    "absorb": _absorb,
}
