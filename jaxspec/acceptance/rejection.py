"""Draw candidates from the drafter, and accept them by rejection sampling."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from jaxspec.acceptance.match import follow
from jaxspec.acceptance.path import (
    CANDIDATES,
    accept_path,
    find_children,
    find_siblings,
    fold_round_keys,
    walk_tree,
)
from jaxspec.core.sampling.noise import gumbel
from jaxspec.core.sampling.sampling import process
from jaxspec.core.sampling.settings import SamplingSpec, SamplingValues
from jaxspec.core.sampling.top_k import top_k
from jaxspec.core.state import Accepted, Candidates, Tree

RANK_DECAY = 0.3
"""Prior of `sample_candidates`: the candidate of rank r is accepted with probability (1 -
RANK_DECAY) RANK_DECAY^r.
"""


def accept_rejection(
    tree: Tree,
    logits: jax.Array,
    draft_logprob: jax.Array,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    longest: int,
    siblings: int | None = None,
    below: jax.Array | None = None,
) -> Accepted:
    """Accept candidates that were drawn without replacement by recursive rejection sampling.

    Sources: Jeon et al. 2024; Yang et al. 2024. Children are tried in row order, which must be the
    order in which they were drawn. Child x is accepted with probability min(1, p(x) / q(x)).
    Otherwise p becomes max(p - q, 0), x is removed from q, and both are renormalised. If no child
    is accepted, the bonus is drawn from the remaining p. With one candidate per depth this is
    speculative sampling (Leviathan et al. 2023; Chen et al. 2023). The rule is lossless for
    candidates of `sample_candidates` in trees of a shape that does not depend on the tokens. Greedy
    decoding uses `accept_match`.

    Args:
      tree: tree of N rows; siblings are the first few candidates of their slot, in order.
      logits: [B, N, V], the target's unprocessed logits.
      draft_logprob: float32 [B, S, V], log-probabilities of the slots that the candidates were
        drawn from.
      spec, values: from `make_sampling`.
      keys: [B], one per sequence.
      position: int32 [B], absolute position of the root.
      longest: static; deeper nodes are not accepted.
      siblings: static, children to try of each node; later ones are not accepted. None: all.
      below: int32 [B, N], the slot that each row's children were drawn from. None: that of the
        row's depth.
    """
    below = jnp.minimum(tree.depth if below is None else below, draft_logprob.shape[1] - 1)
    siblings = tree.token.shape[1] if siblings is None else siblings
    how: dict[str, Any] = {"spec": spec, "values": values, "longest": longest, "siblings": siblings}
    walk, choose = (
        functools.partial(walk_rejection, **how),
        functools.partial(choose_by_rejection, **how),
    )
    return accept_path(
        walk, choose, tree, logits, spec, values, keys, position, longest, draft_logprob, below
    )


def sample_candidates(
    draft_logits: jax.Array,
    count: int,
    spec: SamplingSpec,
    values: SamplingValues,
    keys: jax.Array,
    position: jax.Array,
    first: int | jax.Array = 0,
) -> tuple[Candidates, jax.Array]:
    """Draw `count` tokens per slot without replacement from the drafter by Gumbel-top-k.

    They come from the drafter's processed distributions. Greedy decoding gets the most likely
    tokens with their log-probabilities.

    Args:
      draft_logits: [B, S, V].
      count: static, at most V.
      spec, values: from `make_sampling`.
      keys: [B], one per sequence.
      position: int32 [B], absolute position of the root.
      first: number of the first slot, if several calls draw the candidates of a round. Slots of
        different numbers draw independently.

    Returns:
      Candidates in the order drawn, and draft_logprob float32 [B, S, V] for `accept_rejection`.
      The candidates' scores depend only on their rank (geometric with RANK_DECAY; -inf if the
      distribution has no further token): if the tree's shape depended on the sampled tokens, it
      would bias the output.
    """
    logprob = jax.nn.log_softmax(process(draft_logits, spec, values), axis=-1)
    if spec.greedy:
        best, token = top_k(logprob, count)
        return Candidates(token=token, logprob=best), logprob
    slot = first + jnp.arange(draft_logits.shape[1])
    noise = gumbel(
        fold_round_keys(keys, position, CANDIDATES),
        jnp.broadcast_to(slot, draft_logits.shape[:2]),
        logprob.shape[-1],
    )
    drawn, token = top_k(logprob + noise, count)
    prior = jnp.log1p(-RANK_DECAY) + jnp.arange(count) * jnp.log(RANK_DECAY)
    scores = jnp.where(jnp.isfinite(drawn), prior, -jnp.inf).astype(jnp.float32)
    return Candidates(token=token, logprob=scores), logprob


def walk_rejection(
    tree: Tree,
    logits: jax.Array,
    draws: jax.Array,
    draft_logprob: jax.Array,
    below: jax.Array,
    *,
    spec: SamplingSpec,
    values: SamplingValues,
    longest: int,
    siblings: int,
) -> tuple[Accepted, jax.Array]:
    """Apply `accept_rejection` to one tree, without the bonus; `draws` float32 [N] are uniform."""
    rows = jnp.arange(tree.token.shape[0])

    def descend(
        row: jax.Array, depth: jax.Array, p: jax.Array
    ) -> tuple[jax.Array, jax.Array, jax.Array]:
        child = find_children(tree, row, depth, longest)

        def attempt(state: tuple) -> tuple:
            count, tried, _, p, q = state
            tried = jnp.argmax(child & (rows > tried)).astype(jnp.int32)
            # On acceptance nothing reads p and q any more.
            return count + 1, tried, *_attempt(p, q, tree.token[tried], draws[tried])

        def unfinished(state: tuple) -> jax.Array:
            count, tried, accepted, _, _ = state
            return ~accepted & (count < siblings) & (child & (rows > tried)).any()

        q = jnp.exp(draft_logprob[below[row]])
        start = (jnp.int32(0), jnp.int32(0), jnp.bool_(False), p, q)
        _, tried, accepted, left, _ = lax.while_loop(unfinished, attempt, start)
        return accepted, tried, left

    return walk_tree(logits, spec, values, longest, descend)


def choose_by_rejection(
    tree: Tree,
    logits: jax.Array,
    draws: jax.Array,
    draft_logprob: jax.Array,
    below: jax.Array,
    *,
    spec: SamplingSpec,
    values: SamplingValues,
    longest: int,
    siblings: int,
) -> tuple[Accepted, jax.Array]:
    """Apply the rule of `walk_rejection` at all rows of the tree at once."""
    rows = tree.token.shape[0]
    child, elder = find_siblings(tree, longest)
    rank, children = elder.sum(-1), child & (tree.parent == jnp.arange(rows)[:, None])

    def distributions(row: jax.Array) -> tuple[jax.Array, jax.Array]:
        p = jax.nn.softmax(process(logits[row], spec, values), axis=-1)
        return p, jnp.exp(draft_logprob[below[row]])

    # At most (N - 1) // r rows have r children. With parents sorted by their number of children,
    # the r-th try goes through that many of them.
    parent = jnp.argsort(-children.sum(-1), stable=True)
    p, q = distributions(parent[: rows - 1])
    hit = jnp.zeros(rows, bool)
    for r in range(min(siblings, rows - 1)):
        some = slice((rows - 1) // (r + 1))
        here = children[parent[some]] & (rank == r)
        tried = jnp.argmax(here, axis=-1)
        accepted, p, q = jax.vmap(_attempt)(p[some], q[some], tree.token[tried], draws[tried])
        hit |= (here & accepted[:, None]).any(0)
    path, count, last = follow(tree, hit & ~(elder & hit).any(-1), longest)
    # The children of the last row were all rejected: see what that leaves.
    p, q = distributions(last)
    for r in range(min(siblings, rows - 1)):
        here = children[last] & (rank == r)
        _, *left = _attempt(p, q, tree.token[jnp.argmax(here)], jnp.float32(0))
        p, q = (jnp.where(here.any(), x, y) for x, y in zip(left, (p, q), strict=True))
    return Accepted(path=path, count=count, bonus=jnp.int32(0)), p


def _attempt(
    p: jax.Array, q: jax.Array, token: jax.Array, draw: jax.Array
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Try a token drawn from q [V]; return whether it is accepted, and p and q if it is not."""
    return (
        draw * q[token] < p[token],
        _normalise(jnp.maximum(p - q, 0.0), p),
        _normalise(jnp.where(jnp.arange(q.shape[0]) == token, 0.0, q), q),
    )


def _normalise(weight: jax.Array, otherwise: jax.Array) -> jax.Array:
    """Scale `weight` to sum to 1; return `otherwise` if it is all zero."""
    total = weight.sum()
    return jnp.where(total > 0, weight / jnp.where(total > 0, total, 1.0), otherwise)
