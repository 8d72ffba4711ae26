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

from jaxspec.adapt.redraft import redraft
from jaxspec.adapt.segments import Segments
from jaxspec.drafters.base import Drafter, TargetHead
from jaxspec.drafters.rank_classes import classify_rank, score_classes, weigh_classes

_TINY = 1e-6


class Positions(NamedTuple):
    """What a drafter says at the positions of segments, [Q, S, D] each.

    Attributes:
      ce: cross-entropy with the target, in nats.
      rank: loss of the rank head, 0 without one.
      kl: KL(q || q0) in nats, 0 if it is not asked for.
      chance: probability of the target's most probable token.
      hit: whether that is the drafter's most probable token.
      known: whether the drafter can propose it.
    """

    ce: jax.Array
    rank: jax.Array
    kl: jax.Array
    chance: jax.Array
    hit: jax.Array
    known: jax.Array


def judge(
    drafter: Drafter,
    variables: Any,
    target: TargetHead,
    segments: Segments,
    context: int,
    start: Any = None,
) -> Positions:
    """Draft segments again and compare with the target.

    Args:
      variables: of the drafter.
      context: see `redraft`.
      start: variables of q0; None: `kl` is 0.
    """

    versions = (variables,) if start is None else (variables, start)

    def compare(q: jax.Array, said: list[tuple[jax.Array, Any]]) -> Positions:
        found = _compare(segments, q, *said[0])
        return found if start is None else found._replace(kl=_diverge(said[0][0], said[1][0]))

    return redraft(drafter, versions, target, segments, context, compare)


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


def _compare(segments: Segments, q: jax.Array, logits: jax.Array, classes: Any) -> Positions:
    """Compare the drafter with the target at the positions of round `q`, [S, D] each."""
    depths = logits.shape[1]
    row = jnp.minimum(
        segments.begin[:, q, None] + jnp.arange(depths), segments.features.shape[1] - 1
    )
    ids, logprob = (
        jnp.take_along_axis(x, row[..., None], axis=1) for x in (segments.ids, segments.logprob)
    )
    tail = jnp.take_along_axis(segments.tail, row, axis=1)
    said = jax.nn.log_softmax(logits)
    ours = jnp.take_along_axis(said, ids, axis=-1)
    drafted = ours > -jnp.inf  # not outside a reduced draft vocabulary
    safe = jnp.where(drafted, ours, 0.0)
    rest = 1.0 - jnp.where(drafted, jnp.exp(safe), 0.0).sum(-1)
    ce = -(jnp.where(drafted, jnp.exp(logprob), 0.0) * safe).sum(-1)
    ce -= tail * jnp.log(jnp.maximum(rest, _TINY))
    best = ids[..., 0]
    hit = logits.argmax(-1) == best
    rank = jnp.zeros_like(ce)
    if classes is not None:
        fixed = jax.lax.stop_gradient(said)
        wanted = classify_rank((fixed > jnp.take_along_axis(fixed, best[..., None], -1)).sum(-1))
        weight = segments.weight[:, q]
        rare = weigh_classes(wanted, (weight > 0).astype(jnp.float32), (0,), classes.shape[-1])
        rank = score_classes(classes, wanted) * jnp.where(weight > 0, rare, 0)
    chance = jnp.where(drafted[..., 0], jnp.exp(safe[..., 0]), 0.0)
    return Positions(ce, rank, jnp.zeros_like(ce), chance, hit, drafted[..., 0])


def _diverge(logits: jax.Array, start: jax.Array) -> jax.Array:
    """Compute KL(q || q0) [...] of logits [..., V]; both have the same tokens at -inf."""
    here, before = jax.nn.log_softmax(logits), jax.nn.log_softmax(start)
    some = here > -jnp.inf
    apart = jnp.where(some, here, 0.0) - jnp.where(some, before, 0.0)
    return jnp.where(some, jnp.exp(here) * apart, 0.0).sum(-1)
