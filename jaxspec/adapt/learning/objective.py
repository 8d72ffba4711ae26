"""The objective of an update: learn the target where drafts were rejected, and stay near the start.

    L = sum w (ce + rank) / sum w  +  lambda KL(q || q0)

`ce` is the cross-entropy of the drafter's q with the target's distribution p, of which the largest
probabilities and the rest are known. `rank` is the loss of a rank head, if there is one. q0 is the
drafter before deployment (SpecBlock, section 3.4; the form of `ce` and of `rank` is ours).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.adapt.learning.redraft import Said, redraft
from jaxspec.adapt.learning.segments import Segments
from jaxspec.drafters.base import Drafter, TargetHead
from jaxspec.drafters.rank_classes import classify_rank, score_classes, weigh_classes

_TINY = 1e-6


class Positions(NamedTuple):
    """What a drafter says at the positions of segments, [Q, S, D] each.

    Attributes:
      ce: cross-entropy with the target, in nats.
      rank: loss of the rank head, 0 without one.
      kl: KL(q || q0) in nats, 0 if it is not asked for.
      chance: r, the drafter's probability of the token that the target chose.
      hit: whether the target's most probable token is the drafter's.
      known: whether the drafter can propose the target's most probable token.
    """

    ce: jax.Array
    rank: jax.Array
    kl: jax.Array
    chance: jax.Array
    hit: jax.Array
    known: jax.Array


class Aims(NamedTuple):
    """What the target said at some positions.

    Attributes:
      ids: int32 [..., TOP], its most probable tokens, and logprob: float32 [..., TOP], theirs.
      tail: float32 [...], probability of all other tokens.
      chosen: int32 [...], the token that was committed.
    """

    ids: jax.Array
    logprob: jax.Array
    tail: jax.Array
    chosen: jax.Array


def judge(
    drafter: Drafter,
    variables: Any,
    target: TargetHead,
    segments: Segments,
    wanted: jax.Array,
    start: Any = None,
) -> Positions:
    """Draft segments again and compare with the target.

    Args:
      variables: of the drafter.
      wanted: [S, Q, D], above 0 at positions that are read; the others may be zeros.
      start: variables of q0; None: `kl` is 0.
    """

    versions = (variables,) if start is None else (variables, start)

    def fold(q: jax.Array, depth: jax.Array | int, said: list[Said]) -> tuple[Positions, jax.Array]:
        aims = find_aims(segments, q, depth, said[0].logits.shape[1])
        found, right = compare(aims, said[0].logits, said[0].classes)
        if start is not None:
            found = found._replace(kl=diverge(said[0].logits, said[1].logits))
        return found, right

    found, right = redraft(drafter, versions, target, segments, wanted, fold)
    return weigh_ranks(found, right, segments, drafter.rank_classes)


def weigh_ranks(found: Positions, right: jax.Array, segments: Segments, classes: int) -> Positions:
    """Lower the rank loss of frequent classes; `right` int32 [Q, S, D] are the right ones.

    Per round and depth over the segments, which are side by side only once all are compared.
    """
    if not classes:
        return found
    trained = (segments.weight.swapaxes(0, 1) > 0).astype(jnp.float32)
    return found._replace(rank=found.rank * weigh_classes(right, trained, (1,), classes))


def average_loss(
    found: Positions, segments: Segments, anchor: float
) -> tuple[jax.Array, dict[str, jax.Array]]:
    """Average the objective over the positions that are trained on.

    Args:
      anchor: lambda.

    Returns:
      The loss and its terms.
    """
    weight = jnp.where(found.known, segments.weight.swapaxes(0, 1), 0)
    total = jnp.maximum(weight.sum(), _TINY)

    def mean(values: jax.Array) -> jax.Array:
        return jnp.where(weight > 0, values * weight, 0).sum() / total

    terms = {"ce": mean(found.ce), "rank": mean(found.rank), "kl": mean(found.kl)}
    return terms["ce"] + terms["rank"] + anchor * terms["kl"], terms


def find_aims(segments: Segments, q: jax.Array, depth: jax.Array | int, slots: int) -> Aims:
    """Find what the target said from position `depth` of rounds `q` int32 [S] on, [S, slots]."""
    row = jnp.take_along_axis(segments.begin, q[:, None], axis=1) + depth
    row = jnp.minimum(row + jnp.arange(slots), segments.features.shape[1] - 1)
    ids, logprob = (
        jnp.take_along_axis(x, row[..., None], axis=1) for x in (segments.ids, segments.logprob)
    )
    tail = jnp.take_along_axis(segments.tail, row, axis=1)
    return Aims(ids, logprob, tail, jnp.take_along_axis(segments.token, row + 1, axis=1))


def compare(
    aims: Aims, logits: jax.Array, classes: jax.Array | None, vocabulary: jax.Array | None = None
) -> tuple[Positions, jax.Array]:
    """Compare the drafter with the target.

    Args:
      logits: float32 [..., V], -inf for tokens that cannot be drafted; classes: float32 [..., C].
      vocabulary: int32 [D], the draft vocabulary, if `logits` are of it alone; None: they are whole.

    Returns:
      What it says, the rank loss without the weights of classes; and the right classes int32 [...].
    """
    said = jax.nn.log_softmax(logits)

    def read(tokens: jax.Array) -> jax.Array:
        """Return log q of tokens [..., N]."""
        if vocabulary is None:
            return jnp.take_along_axis(said, tokens, axis=-1)
        at = jnp.minimum(jnp.searchsorted(vocabulary, tokens), len(vocabulary) - 1)
        ours = jnp.take_along_axis(said, at, axis=-1)
        return jnp.where(vocabulary[at] == tokens, ours, -jnp.inf)

    ours = read(aims.ids)
    drafted = ours > -jnp.inf  # not outside a reduced draft vocabulary
    safe = jnp.where(drafted, ours, 0.0)
    rest = 1.0 - jnp.where(drafted, jnp.exp(safe), 0.0).sum(-1)
    ce = -(jnp.where(drafted, jnp.exp(aims.logprob), 0.0) * safe).sum(-1)
    ce -= aims.tail * jnp.log(jnp.maximum(rest, _TINY))
    first = logits.argmax(-1)
    hit = (first if vocabulary is None else vocabulary[first]) == aims.ids[..., 0]
    rank, right = jnp.zeros_like(ce), jnp.zeros_like(aims.chosen)
    if classes is not None:
        fixed = jax.lax.stop_gradient(said)
        right = classify_rank((fixed > jax.lax.stop_gradient(ours[..., :1])).sum(-1))
        rank = score_classes(classes, right)
    # Of the committed token, which above temperature 0 need not be the most probable one.
    chance = jnp.exp(read(aims.chosen[..., None]))[..., 0]
    return Positions(ce, rank, jnp.zeros_like(ce), chance, hit, drafted[..., 0]), right


def diverge(logits: jax.Array, start: jax.Array) -> jax.Array:
    """Compute KL(q || q0) [...] of logits [..., V]; both have the same tokens at -inf."""
    here, before = jax.nn.log_softmax(logits), jax.nn.log_softmax(start)
    some = here > -jnp.inf
    apart = jnp.where(some, here, 0.0) - jnp.where(some, before, 0.0)
    return jnp.where(some, jnp.exp(here) * apart, 0.0).sum(-1)
