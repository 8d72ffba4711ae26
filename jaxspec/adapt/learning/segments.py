"""Segments: stretches of committed text with what a drafter needs to draft them again.

A segment has W rows, one per committed token: the features that the drafter reads there and the
target's distribution of the next token, cut to its `TOP` most probable tokens. It also holds the
rounds that committed them, and which of their positions are trained on and which are held out.
Segments stay on the device, in a ring of fixed size.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.targets.transformer import Transformer

TOP = 64


class Segments(flax.struct.PyTreeNode):
    """N segments of W rows and at most Q rounds, each of at most D positions.

    Row w holds the token x_w and what the target says of the token after it. Position d of a round
    that begins at row b is the drafter's (d + 1)-th token after x_b; the target's distribution of
    it is that of row b + d.

    Attributes:
      token: int32 [N, W + 1], committed tokens and the one after them.
      features: [N, W, F].
      logprob: float32 [N, W, TOP], the target's largest log-probabilities at temperature 1.
      ids: int32 [N, W, TOP], their tokens, most probable first.
      tail: float32 [N, W], probability of all other tokens.
      begin: int32 [N, Q], row of each round's root.
      count: int32 [N, Q], tokens that each round committed; 0 behind the last round.
      reject: float32 [N, Q, D], 1 where the target preferred its own token to all drafted ones.
      weight: float32 [N, Q, D], weight in training; 0 for held-out positions.
      held: float32 [N, Q, D], 1 for held-out positions.
      number: int32 [N], number of the segment, counted from the start of its buffers.
    """

    token: jax.Array
    features: jax.Array
    logprob: jax.Array
    ids: jax.Array
    tail: jax.Array
    begin: jax.Array
    count: jax.Array
    reject: jax.Array
    weight: jax.Array
    held: jax.Array
    number: jax.Array


@functools.partial(jax.jit, static_argnames=("config",))
def read_rows(
    config: TargetConfig,
    target: Any,
    features: jax.Array,
    hidden: jax.Array,
    sequence: jax.Array,
    at: jax.Array,
) -> tuple[jax.Array, ...]:
    """Read W rows of a sequence's ring and compute the target's distributions.

    Args:
      config, target: of the target.
      features, hidden: of `jaxspec.round.evidence.Evidence`.
      sequence: int32 [], index in the batch.
      at: int32 [W], the rows.

    Returns:
      features [W, F], and logprob, ids and tail of `Segments`, for one segment.
    """
    seen, hidden = features[sequence, at], hidden[sequence, at]
    logits = Transformer(config).apply(target, hidden[None], method="logits")[0]
    logprob = jax.nn.log_softmax(logits.astype(jnp.float32))
    best, ids = jax.lax.top_k(logprob, min(TOP, logits.shape[-1]))
    tail = jnp.maximum(1.0 - jnp.exp(best).sum(-1), 0.0)
    return seen, best, ids.astype(jnp.int32), tail


@functools.partial(jax.jit, donate_argnames=("ring",))
def write_segment(ring: Segments, one: Segments, at: jax.Array) -> Segments:
    """Write a segment (no leading axis) to entry `at` of the ring, in place."""
    return jax.tree.map(lambda all, new: all.at[at].set(new.astype(all.dtype)), ring, one)


def empty_ring(like: Segments, size: int) -> Segments:
    """Make a ring of `size` empty segments, shaped like one segment (no leading axis)."""
    return jax.tree.map(lambda leaf: jnp.zeros((size, *leaf.shape), leaf.dtype), like)


@jax.jit
def take_segments(ring: Segments, ids: jax.Array, used: jax.Array) -> Segments:
    """Take the segments `ids` int32 [S]; those with `used` bool [S] False count nowhere."""
    taken = jax.tree.map(lambda leaf: leaf[ids], ring)
    share = used.astype(jnp.float32)[:, None, None]
    return taken.replace(weight=taken.weight * share, held=taken.held * share)
