"""What a round could have drafted: the pool at full depth, and what any depth and size of it would have committed."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.builders.candidates import rank
from jaxspec.builders.stepwise import Offers
from jaxspec.grow import target_head
from jaxspec.plan import make_plan
from jaxspec.policies.ltd_features import pool_size
from jaxspec.state import Pool, Tree


def draft_pool(params, state, config) -> Pool:
    """The pool [B, P] of a greedy round that takes every draft step there is.

    Depth does not change what shallower levels hold, so that its first W + W * W * d candidates are the pool of d steps.
    """
    plan = make_plan(params.spec, config)
    stepper, drafter, variables = plan.builder, plan.drafter, params.drafter(config.method)
    target, batch, per_step = target_head(params, config), state.root.shape[0], stepper.nodes * stepper.slots
    own = params.spec.drafter(config.method).score_temperature
    scoring = own if config.score_temperature is None else config.score_temperature
    limit = jnp.full(batch, stepper.longest)

    def offers(proposal):
        logits = proposal.logits[:, :, : stepper.slots]
        ranked = rank(logits.reshape(batch, -1, logits.shape[-1]), stepper.candidates, None, scoring)
        return Offers(*(x.reshape(*logits.shape[:3], -1) for x in (ranked.token, ranked.logprob)), proposal.classes)

    proposal, scratch = drafter.start(variables, state.draft, target, state.root, stepper.slots + stepper.steps * per_step)
    pool, nodes = jax.vmap(stepper.begin)(offers(proposal), limit)

    def body(step, carry):
        pool, nodes, scratch = carry
        first = stepper.slots + step * per_step
        proposal, scratch = drafter.expand(variables, state.draft, scratch, target, nodes, first)
        pool, nodes = jax.vmap(stepper.grow, (0, 0, 0, None, 0))(pool, nodes, offers(proposal), step, limit)
        return pool, nodes, scratch

    return jax.lax.fori_loop(0, stepper.steps, body, (pool, nodes, scratch))[0]


def committed_of_pool(pool: Pool, following: jax.Array, width: int, sizes: tuple[int, ...]) -> jax.Array:
    """Tokens that a round would commit, int32 [steps + 1, sizes], of one dynamic tree's pool (no batch axis).

    Args:
      pool: of width W, at full depth.
      following: int32 [A], the text after the root; -1 beyond its end. A is the longest drafted path.
      sizes: rows verified, the root included.
    """
    index, score = jnp.arange(pool.token.shape[0]), pool.logprob
    steps = (pool.token.shape[0] - width) // width**2
    reach = pool_size(width, jnp.arange(steps + 1))  # candidates that d steps leave

    def descend(node, token):
        match = (pool.parent == node) & (pool.token == token) & (score > -jnp.inf)
        node = jnp.where(match.any(), jnp.argmax(match), -2)  # -2: no node's parent
        return node, node

    _, path = jax.lax.scan(descend, jnp.int32(-1), following)
    at = jnp.maximum(path, 0)[:, None]
    before = (score > score[at]) | ((score == score[at]) & (index < at))
    place = jnp.cumsum(before, axis=1)[:, reach - 1].T  # [steps + 1, A], candidates that come first
    inside = (path >= 0) & (path < reach[:, None])
    kept = inside[:, None] & (place[:, None] < jnp.array(sizes)[:, None] - 1)
    return 1 + kept.sum(-1, dtype=jnp.int32)


def committed_of_tree(tree: Tree, following: jax.Array, sizes: tuple[int, ...]) -> jax.Array:
    """Tokens that a round would commit, int32 [1, sizes], of one sorted tree (no batch axis); arguments as above."""
    index = jnp.arange(tree.token.shape[0])

    def descend(row, token):
        match = (tree.parent == row) & (tree.token == token) & (index > 0) & (index < tree.size)
        row = jnp.where(match.any(), jnp.argmax(match), -2)
        return row, row

    _, path = jax.lax.scan(descend, jnp.int32(0), following)
    kept = (path >= 0) & (path < jnp.array(sizes)[:, None])
    return 1 + kept.sum(-1, dtype=jnp.int32)[None]
