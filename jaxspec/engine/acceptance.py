"""Acceptance rules: which path of a verified tree is committed, and the target's own token after
it.

All of them are lossless. `accept_match` goes with draft-invariant sampling and is the default. The
other two consume noise of their own, disjoint from `sampling.gumbel`'s: the shared noise would bias
them, for candidates may have been chosen under it.

B sequences, N tree rows, W mask words, A = longest + 1, V vocabulary.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.core.sampling import (
    SamplingSpec,
    SamplingValues,
    argmax,
    draw,
    fold_in,
    gumbel,
    process,
    uniform,
)
from jaxspec.core.state import Accepted, Candidates, Tree

RANK_DECAY = 0.3
"""Prior of `sample_candidates`: the candidate of rank r is accepted with probability (1 -
RANK_DECAY) RANK_DECAY^r.
"""

# Folded into a sequence's key. Positions are below 2^31, so none of these is the key of a
# position's Gumbel noise.
_ACCEPT, _BONUS, _CANDIDATES = 0xFFFFFF01, 0xFFFFFF02, 0xFFFFFF03
_WORD = 32

# (row, depth, p [V]) -> (found, child row, what is left of p when no child is accepted).
Descend = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array, jax.Array]]


def accept_match(tree: Tree, target_token: jax.Array, longest: int) -> Accepted:
    """A node is accepted when its parent is and its token is the one that the target drew there.

    Among siblings with the same token the last row wins (the child maps of DDTree and JetSpec).

    Args:
      tree: tree of N rows.
      target_token: int32 [B, N], the target's token after each row (`sampling.draw`).
      longest: static; deeper nodes are not accepted.

    Returns:
      Accepted with A = longest + 1; the bonus is the target's token after the last accepted row.
    """
    rows = tree.token.shape[1]
    row = jnp.arange(rows)
    match = tree.token == jnp.take_along_axis(target_token, jnp.maximum(tree.parent, 0), axis=1)
    match &= (row > 0) & (row < tree.size[:, None]) & (tree.depth <= longest)
    # Matching siblings all hold their parent's token, so comparing parents is enough to find
    # duplicates.
    later = (
        (tree.parent[:, :, None] == tree.parent[:, None, :])
        & match[:, None, :]
        & (row > row[:, None])
    )
    match = (match & ~later.any(-1)) | (row == 0)
    missed = _pack_bits(~match, tree.ancestors.shape[-1])
    accepted = ((tree.ancestors & missed[:, None, :]) == 0).all(-1)
    # At most one row of a depth is accepted, so a path is a reduction over rows rather than a walk.
    at = accepted[:, None, :] & (tree.depth[:, None, :] == jnp.arange(longest + 1)[:, None])
    path = jnp.where(at, row, 0).max(-1).astype(jnp.int32)
    last = jnp.where(accepted, row, 0).max(-1)
    bonus = jnp.take_along_axis(target_token, last[:, None], axis=1)[:, 0]
    return Accepted(
        path=path, count=accepted.sum(-1, dtype=jnp.int32), bonus=bonus.astype(jnp.int32)
    )


def _pack_bits(bits: jax.Array, words: int) -> jax.Array:
    """uint32 [B, W] of bool [B, N]: column j is bit j % 32 of word j // 32."""
    bits = jnp.pad(bits, ((0, 0), (0, words * _WORD - bits.shape[1])))
    bits = bits.reshape(bits.shape[0], words, _WORD).astype(jnp.uint32)
    return (bits << jnp.arange(_WORD, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def accept_sequential(
    tree: Tree,
    logits: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    longest: int,
) -> Accepted:
    """EAGLE's rule (its released code): the children of an accepted node are tried in row order as
    point-mass proposals.

    Child c is accepted with its probability p(c); otherwise p(c) becomes 0, p is renormalised and
    the next child is tried. When none is accepted the bonus is drawn from what is left of p. A
    repeated sibling is skipped, so the first one wins. Lossless for every tree that does not depend
    on the noise used here. Greedy: `accept_match`.

    Args:
      tree: tree of N rows.
      logits: [B, N, V], the target's, not processed; only rows on the path are read.
      keys: one per sequence, [B]. position: int32 [B], absolute position of the root.
      longest: static; deeper nodes are not accepted.
    """
    if spec.greedy:
        return accept_match(tree, draw(logits, None, tree.depth, spec, values), longest)
    walk = functools.partial(_walk_sequential, spec=spec, values=values, longest=longest)
    accepted, left = jax.vmap(walk)(tree, logits, _uniform(keys, position, tree))
    return accepted.replace(bonus=_sample(left, keys, position))


def accept_rejection(
    tree: Tree,
    logits: jax.Array,
    draft_logprob: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    longest: int,
) -> Accepted:
    """Recursive rejection sampling of candidates that were drawn without replacement (Jeon et al.
    2024; Yang et al. 2024).

    Children are tried in row order, which must be the order in which they were drawn: x is accepted
    with probability min(1, p(x) / q(x)); otherwise p becomes max(p - q, 0) and q loses x, both
    renormalised. When none is accepted the bonus is drawn from what is left of p. With one
    candidate per depth this is speculative sampling (Leviathan et al. 2023; Chen et al. 2023).
    Lossless for candidates of `sample_candidates` in trees whose shape does not depend on the
    tokens. Greedy: `accept_match`.

    Args:
      tree: tree of N rows whose siblings are the first few candidates of their depth, in order.
      logits: [B, N, V], the target's, not processed; only rows on the path are read.
      draft_logprob: float32 [B, depth, V], log of the distributions that the candidates were drawn
        from; [:, d] belongs to the children of nodes of depth d.
      keys: one per sequence, [B]. position: int32 [B], absolute position of the root.
      longest: static; deeper nodes are not accepted.
    """
    if spec.greedy:
        return accept_match(tree, draw(logits, None, tree.depth, spec, values), longest)
    walk = functools.partial(_walk_rejection, spec=spec, values=values, longest=longest)
    accepted, left = jax.vmap(walk)(tree, logits, _uniform(keys, position, tree), draft_logprob)
    return accepted.replace(bonus=_sample(left, keys, position))


def sample_candidates(
    draft_logits: jax.Array,
    count: int,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    first: int | jax.Array = 0,
) -> tuple[Candidates, jax.Array]:
    """Draw `count` tokens per depth without replacement from the drafter's processed distributions
    (Gumbel-top-k).

    Args:
      draft_logits: [B, depth, V]. count: static, at most V.
      keys: one per sequence, [B]. position: int32 [B], absolute position of the root.
      first: depth of the parents of draft_logits[:, 0], where several calls draw one round's
        candidates.

    Returns:
      Candidates in the order drawn, and draft_logprob float32 [B, depth, V] for `accept_rejection`.
      The candidates' scores depend on their rank alone (geometric with RANK_DECAY; -inf where the
      distribution has no further token): a tree whose shape followed from the sampled tokens would
      bias the output. Greedy: the most likely tokens with their log-probabilities.
    """
    logprob = jax.nn.log_softmax(process(draft_logits, spec, values), axis=-1)
    if spec.greedy:
        best, token = lax.top_k(logprob, count)
        return Candidates(token=token.astype(jnp.int32), logprob=best), logprob
    depth = first + jnp.arange(draft_logits.shape[1])
    noise = gumbel(
        _round_keys(keys, position, _CANDIDATES),
        jnp.broadcast_to(depth, draft_logits.shape[:2]),
        logprob.shape[-1],
    )
    drawn, token = lax.top_k(logprob + noise, count)
    prior = jnp.log1p(-RANK_DECAY) + jnp.arange(count) * jnp.log(RANK_DECAY)
    scores = jnp.where(jnp.isfinite(drawn), prior, -jnp.inf).astype(jnp.float32)
    return Candidates(token=token.astype(jnp.int32), logprob=scores), logprob


def _round_keys(keys: jax.Array, position: jax.Array, purpose: int) -> jax.Array:
    """Keys [B] for one purpose; no two rounds start at the same `position`, so none are equal."""
    return fold_in(fold_in(keys, jnp.uint32(purpose)), position)


def _uniform(keys: jax.Array, position: jax.Array, tree: Tree) -> jax.Array:
    """float32 [B, N], what decides about each row."""
    return uniform(_round_keys(keys, position, _ACCEPT), tree.token.shape[1])


def _sample(probability: jax.Array, keys: jax.Array, position: jax.Array) -> jax.Array:
    """int32 [B] drawn from `probability` [B, V], which need not be normalised."""
    noise = gumbel(
        _round_keys(keys, position, _BONUS),
        jnp.zeros((position.shape[0], 1), jnp.int32),
        probability.shape[-1],
    )
    return argmax(jnp.log(probability) + noise[:, 0])


def _walk(
    logits: jax.Array, spec: SamplingSpec, values: SamplingValues, longest: int, descend: Descend
) -> tuple[Accepted, jax.Array]:
    """Walk down one tree from the root while `descend(row, depth, p)` finds a child, or its last
    depth is reached.

    `descend` gives (found, child row, what is left of p when no child is accepted); p float32 [V]
    is the processed distribution after `row`. One row of logits is processed at a time.

    Returns:
      Accepted without a bonus, and the distribution float32 [V] from which the bonus is to be
      drawn.
    """

    def step(state: tuple) -> tuple:
        row, count, path, _, _ = state
        p = jax.nn.softmax(process(logits[row], spec, values))
        found, child, left = descend(row, count - 1, p)
        # Rounding can leave nothing of p although every child was rejected: draw from p itself
        # rather than from outside of it.
        left = jnp.where(left.any(), left, p)
        path = path.at[count].set(jnp.where(found, child, 0), mode="drop")
        return jnp.where(found, child, row), count + found, path, left, ~found

    start = (
        jnp.int32(0),
        jnp.int32(1),
        jnp.zeros(longest + 1, jnp.int32),
        jnp.zeros(logits.shape[-1]),
        jnp.bool_(False),
    )
    _, count, path, left, _ = lax.while_loop(lambda state: ~state[-1], step, start)
    return Accepted(path=path, count=count, bonus=jnp.int32(0)), left


def _children(tree: Tree, row: jax.Array, depth: jax.Array, longest: int) -> jax.Array:
    """Which rows are children of `row` that may be accepted, bool [N]."""
    rows = jnp.arange(tree.token.shape[0])
    return (tree.parent == row) & (rows > 0) & (rows < tree.size) & (depth < longest)


def _walk_sequential(
    tree: Tree,
    logits: jax.Array,
    draws: jax.Array,
    *,
    spec: SamplingSpec,
    values: SamplingValues,
    longest: int,
) -> tuple[Accepted, jax.Array]:
    """`accept_sequential` of one tree, without the bonus; `draws` float32 [N] are uniform."""
    rows = jnp.arange(tree.token.shape[0])
    same = (
        (tree.parent[:, None] == tree.parent)
        & (tree.token[:, None] == tree.token)
        & (rows < rows[:, None])
    )
    repeated = same.any(-1)

    def descend(
        row: jax.Array, depth: jax.Array, p: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        child = _children(tree, row, depth, longest) & ~repeated
        mass = jnp.where(child, p[tree.token], 0.0)
        # u < p(c) / (1 - mass of the children rejected before c), for all children at once.
        hit = child & (draws * (1.0 - (jnp.cumsum(mass) - mass)) < mass)
        left = p.at[jnp.where(child, tree.token, p.shape[0])].set(0.0, mode="drop")
        return hit.any(), jnp.argmax(hit).astype(jnp.int32), left

    return _walk(logits, spec, values, longest, descend)


def _walk_rejection(
    tree: Tree,
    logits: jax.Array,
    draws: jax.Array,
    draft_logprob: jax.Array,
    *,
    spec: SamplingSpec,
    values: SamplingValues,
    longest: int,
) -> tuple[Accepted, jax.Array]:
    """`accept_rejection` of one tree, without the bonus; `draws` float32 [N] are uniform."""
    rows = jnp.arange(tree.token.shape[0])

    def descend(
        row: jax.Array, depth: jax.Array, p: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        child = _children(tree, row, depth, longest)

        def attempt(state: tuple) -> tuple:
            tried, _, p, q = state
            tried = jnp.argmax(child & (rows > tried)).astype(jnp.int32)
            token = tree.token[tried]
            accepted = draws[tried] * q[token] < p[token]
            # On acceptance nothing reads p and q any more.
            return (
                tried,
                accepted,
                _normalise(jnp.maximum(p - q, 0.0), p),
                _normalise(q.at[token].set(0.0), q),
            )

        def unfinished(state: tuple) -> jax.Array:
            tried, accepted, _, _ = state
            return ~accepted & (child & (rows > tried)).any()

        q = jnp.exp(draft_logprob[jnp.minimum(depth, draft_logprob.shape[0] - 1)])
        tried, accepted, left, _ = lax.while_loop(
            unfinished, attempt, (jnp.int32(0), jnp.bool_(False), p, q)
        )
        return accepted, tried, left

    return _walk(logits, spec, values, longest, descend)


def _normalise(weight: jax.Array, otherwise: jax.Array) -> jax.Array:
    """`weight` scaled to sum to 1, or `otherwise` where it is all zero."""
    total = weight.sum()
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), otherwise)
