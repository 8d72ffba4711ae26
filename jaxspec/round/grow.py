"""Grow: turn what the drafter proposed into the round's tree, and score its nodes for the policy.

A tree is ordered by scores of the call: of its temperature, its noise and its score temperature. A
policy reads the same nodes at a scale of its own, `PolicyConfig.score_scale`. Its scores follow the tree:
each step's candidates are scored once more, and summed up along the paths that the builder chose.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.builders import Growth, StepCandidates
from jaxspec.builders.trees.rows import order_nodes, path_sums
from jaxspec.core.state import DecodeState, Nodes, Pool, Tree
from jaxspec.core.tree import keep_rows, root_only
from jaxspec.round.context import Drawn, Round
from jaxspec.round.proposals import Drafted


def grow(round: Round, state: DecodeState, drafted: Drafted) -> Tree:
    """Build the draft tree. For `ar` and for finished sequences it is the root alone."""
    if drafted.grown is None:
        return root_only(state.root, 1)
    tree = jax.vmap(round.growth.finish)(drafted.grown, state.root)
    if round.drafter.most_nodes is None:
        return tree
    return keep_rows(tree, 1 + round.drafter.most_nodes(drafted.scratch))


def find_drawn(round: Round, drafted: Drafted) -> Drawn | None:
    """Find the distributions that the candidates of the round's tree were drawn from.

    None unless acceptance needs them.
    """
    if drafted.logprob is None:
        return None
    if drafted.below is None:
        return Drawn(drafted.logprob)
    count = round.growth.rows - 1
    best = jax.vmap(lambda pool: order_nodes(pool, count)[1])(drafted.pool)
    rows = jnp.take_along_axis(drafted.below, best, axis=1)
    return Drawn(drafted.logprob, jnp.pad(rows, ((0, 0), (1, 0))))  # the root's slot is number 0


def score_pool(
    scores: jax.Array, before: jax.Array, pool: Pool, nodes: Nodes, offered: StepCandidates
) -> jax.Array:
    """Score the nodes that a step put into a pool (no batch axis): float32 [P].

    Args:
      scores: float32 [P], of the nodes before the step.
      before, pool: the pool's own log-probabilities [P] before the step, and the pool after it.
      nodes: that the step drafted from.
      offered: their candidates.
    """
    new = (pool.logprob > -jnp.inf) & (pool.logprob != before)
    scores, above = jnp.where(new, -jnp.inf, scores), pool.parent
    for slot in range(offered.token.shape[1]):
        # A node that slot k proposed is k levels below a child of the node drafted from.
        source = (above[:, None] == nodes.node) & nodes.live
        lane = jnp.argmax(source, axis=1)
        same = (offered.token[lane, slot] == pool.token[:, None]) & source.any(1)[:, None]
        step = jnp.max(jnp.where(same, _scores_of(offered)[lane, slot], -jnp.inf), axis=1)
        path = jnp.where(pool.parent < 0, 0.0, scores[pool.parent]) + step
        scores = jnp.where(new, jnp.maximum(scores, path), scores)
        above = jnp.where(above < 0, -2, pool.parent[above])  # no node is -2
    return scores


def show_tree(growth: Growth, drafted: Drafted, tree: Tree) -> Tree:
    """Return the round's tree with scores at the scale that the policy reads.

    It is `tree` itself if these are its own.
    """
    if drafted.offered is not None:
        scores = jax.vmap(_score_sorted)(tree, drafted.offered)
    elif drafted.scores is not None and drafted.pool is not None:
        # Numbered nodes in place of tokens tell which node became which row.
        pool, none = drafted.pool, jnp.zeros(tree.size.shape, jnp.int32)
        number = jnp.broadcast_to(jnp.arange(pool.token.shape[1]), pool.token.shape)
        rows = jax.vmap(growth.finish)(pool.replace(token=number), none).token
        scores = jnp.take_along_axis(drafted.scores, rows, axis=1)
        scores = jnp.where(tree.depth > 0, scores, 0.0)
    else:
        return tree
    return tree.replace(logprob=jnp.where(tree.logprob > -jnp.inf, scores, -jnp.inf))


def _score_sorted(tree: Tree, offered: StepCandidates) -> jax.Array:
    """Score the rows of a tree from one proposal (no batch axis), float32 [N]."""
    slot = jnp.maximum(tree.depth - 1, 0)
    same = offered.token[0, slot] == tree.token[:, None]
    step = jnp.max(jnp.where(same, _scores_of(offered)[0, slot], -jnp.inf), axis=1)
    step = jnp.where(tree.depth > 0, step, 0.0)
    return path_sums(step, tree.parent, offered.token.shape[1])


def _scores_of(offered: StepCandidates) -> jax.Array:
    assert offered.scores is not None, "candidates are scored where a policy reads them"
    return offered.scores
