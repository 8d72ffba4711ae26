"""Measure how well a drafter fits each set of target layers, at every position of a text.

A short decode has too few rounds to distinguish neighbouring layers. But with every drafter the
text is the target's own greedy text, so each of its tokens can be an anchor for each set of layers.
This gives many paired samples.
"""

from __future__ import annotations

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.params import Params
from jaxspec.drafters.base import Committed, Drafter, Nodes, TargetHead
from jaxspec.drafters.registry import make_drafter, record_of
from jaxspec.round.quick_jit import quick_jit
from jaxspec.targets.transformer import Transformer


class Fit(NamedTuple):
    """A drafter's predictions at each anchor; arrays [anchors], text by text.

    Attributes:
      accepted: tokens of a greedy chain that would have been accepted, the bonus not counted. The
        last anchors of a text have fewer tokens left to accept.
      logprob: mean log-probability (nats) of the tokens that follow, over the block's slots. It
        distinguishes layers with far fewer anchors than accepted tokens do.
    """

    accepted: np.ndarray
    logprob: np.ndarray


def measure_fit(
    params: Params,
    name: str,
    texts: list[list[int]],
    starts: list[int],
    layer_sets: list[tuple[int, ...]],
) -> list[Fit]:
    """Measure the fit of every set of feature layers.

    Args:
      params: target and the drafter `name`; the drafter's record must have `rewind`.
      name: name of the drafter.
      texts: token ids, each a prompt and the target's own greedy continuation.
      starts: where the continuations begin. All their tokens except the last are anchors.
      layer_sets: sets of feature layers (outputs, 0-based), each as large as the drafter's own.
    """
    lengths = [len(text) for text in texts]
    tokens = np.full((len(texts), -(-max(lengths) // 32) * 32), -1, np.int32)
    used = np.zeros(tokens.shape, bool)
    for row, mark, text, start in zip(tokens, used, texts, starts, strict=True):
        row[: len(text)] = text
        mark[start : len(text) - 1] = True
    anchors = np.arange(min(starts), max(lengths) - 1)
    layers = tuple(sorted({layer for chosen in layer_sets for layer in chosen}))
    features = _features(
        params.target, np.maximum(tokens, 0), config=params.spec.target, layers=layers
    )
    static = {"config": params.spec.target, "drafter": params.spec.drafter(name)}
    fits = []
    for chosen in layer_sets:
        read = jnp.concatenate([features[layers.index(layer)] for layer in chosen], -1)
        found = _at_anchors(params.target, params.drafters[name], read, tokens, anchors, **static)
        fits.append(Fit(*(np.asarray(values)[used[:, anchors]] for values in found)))
    return fits


def gain(given: Fit, other: Fit) -> float:
    """Compare the log-probabilities of two fits, anchor by anchor.

    Returns:
      How many standard errors `other` is above `given`.
    """
    difference = other.logprob - given.logprob
    error = difference.std() / np.sqrt(difference.size)
    return float(difference.mean() / error) if error > 0 else 0.0


@quick_jit(static_argnames=("config", "layers"))
def _features(variables, tokens, *, config, layers):
    """Compute the outputs [B, T, E] of each of the target's `layers`."""
    positions = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
    out = Transformer(config).apply(variables, tokens, positions, feature_layers=layers)
    return jnp.split(out.features, len(layers), -1)


@quick_jit(static_argnames=("config", "drafter"))
def _at_anchors(variables, drafter_variables, features, tokens, anchors, *, config, drafter):
    """Measure the fit at all anchors.

    Tokens outside a reduced draft vocabulary cannot be accepted. They have no log-probability and
    are left out of the mean.

    Args:
      tokens: int32 [B, T], -1 after the end of a text.

    Returns:
      (accepted int32, logprob float32), each [B, anchors].
    """
    bundle, rewind = make_drafter(drafter), record_of(drafter).rewind
    target = functools.partial(Transformer(config).apply, variables)
    head = TargetHead(*(functools.partial(target, method=method) for method in ("embed", "logits")))
    batch, width = tokens.shape
    state = bundle.init(batch, width, features.dtype)
    zero = jnp.zeros(batch, jnp.int32)
    state = bundle.absorb(
        drafter_variables, state, head, Committed(tokens, tokens, features, zero, zero + width)
    )
    ahead = jnp.pad(tokens, ((0, 0), (0, bundle.depth)), constant_values=-1)

    def at(anchor):
        before = rewind(state, jnp.full(batch, anchor, jnp.int32))
        root = jnp.maximum(tokens[:, anchor], 0)
        following = jax.lax.dynamic_slice_in_dim(ahead, anchor + 1, bundle.depth, axis=1)
        logits = _along(bundle, drafter_variables, before, head, root, following)
        there = following >= 0
        logprob = jnp.take_along_axis(
            jax.nn.log_softmax(logits), jnp.maximum(following, 0)[..., None], -1
        )[..., 0]
        there &= logprob > -jnp.inf
        mean = jnp.where(there, logprob, 0).sum(1) / jnp.maximum(there.sum(1), 1)
        return jnp.cumprod(logits.argmax(-1) == following, axis=1).sum(1), mean

    return tuple(values.T for values in jax.lax.map(at, anchors))


def _along(
    bundle: Drafter,
    variables: Any,
    state: Any,
    head: TargetHead,
    root: jax.Array,
    text: jax.Array,
) -> jax.Array:
    """Compute logits float32 [B, depth, V] of the tokens `text` int32 [B, depth] after `root`.

    A drafter of one token per step is given the text's own tokens, -1 after its end.
    """
    proposal, scratch = bundle.start(variables, state, head, root, bundle.depth)
    logits = [proposal.logits[:, 0]]
    if bundle.expand is not None:
        for depth in range(1, bundle.depth):
            token = jnp.maximum(text[:, depth - 1 : depth], 0)
            place = jnp.full_like(token, depth)
            node = Nodes(token, place - 1, place, place - 1, place > 0)
            proposal, scratch = bundle.expand(
                variables, state, scratch, head, node, jnp.int32(depth)
            )
            logits.append(proposal.logits[:, 0])
    return jnp.concatenate(logits, axis=1).astype(jnp.float32)
