"""GRIFFIN's forward passes over its own outputs, at every position at once (HASS, arXiv 2408.15766,
as in GRIFFIN's token-alignable training).

Pass 0 reads the target's features Q_0. Pass s reads Q_s, the `regress` of the pass before, one row
later. A row's text before it was drafted by as many passes as in decoding: row i of pass s sees
keys and values of Q_0 at the rows up to i - s, and of Q_r at the row i - (s - r) alone.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.drafters.griffin.network import GriffinConfig, GriffinDrafter


class Pairs(NamedTuple):
    """Pairs of packed texts; row t is a feature and the token after it.

    Attributes:
      tokens: [B, S, E], embeddings of the tokens after each feature.
      features: [B, S, E], the target's.
      positions: int32 [B, S], from 0 in each document.
      segments: int32 [B, S], see `training.data.packing.PackedRows`.
    """

    tokens: jax.Array
    features: jax.Array
    positions: jax.Array
    segments: jax.Array


class Passes(NamedTuple):
    """Outputs of n passes, [n, B, S, E] each.

    Attributes:
      predict: what the output projection reads.
      regress: estimates of the next row's feature.
      fed: the features that each pass read.
    """

    predict: jax.Array
    regress: jax.Array
    fed: jax.Array


def run_passes(
    config: GriffinConfig, weights, pairs: Pairs, passes: int, unmasked: bool = False
) -> Passes:
    """Run the drafter over its own outputs. No gradient flows through what is fed.

    Args:
      config: of the drafter.
      weights: variables of `GriffinDrafter(config)`.
      pairs: what pass 0 reads.
      passes: n.
      unmasked: attend as the published code does, see `attend_passes`.
    """
    model = GriffinDrafter(config)
    feature, keys, values, found = pairs.features, [], [], []
    # The rows up to the shift are recomputed for gradients: S * S scores of each pass are large.
    attend = jax.checkpoint(attend_passes, static_argnums=(4,))
    for _ in range(passes):
        x = model.apply(weights, pairs.tokens, feature, method="fuse")
        q, k, v = model.apply(weights, x, pairs.positions, method="project")
        keys, values = [*keys, k], [*values, v]
        attended = attend(q, keys, values, pairs, unmasked)
        predict, regress = model.apply(weights, x, attended, method="finish")
        found.append((predict, regress, feature))
        after = jnp.roll(regress, 1, axis=1)
        first = (pairs.positions == 0)[..., None]
        feature = jax.lax.stop_gradient(jnp.where(first, feature, after))
    return Passes(*map(jnp.stack, zip(*found, strict=True)))


def attend_passes(
    q: jax.Array, keys: list[jax.Array], values: list[jax.Array], pairs: Pairs, unmasked: bool
) -> jax.Array:
    """Attend from the rows of the last of s + 1 passes, see the module.

    The published code has no mask: it sets the scores of other columns to 0 instead of -inf, so
    that each of them adds exp(0) to the denominator. Then a row depends on how long its batch is,
    and pass 0 is not what decoding computes.

    Args:
      q: [B, S, H, D].
      keys, values: [B, S, K, D] of each pass.
      pairs: its positions and segments are read.
      unmasked: do as the published code.

    Returns:
      [B, S, H, D].
    """
    batch, length, heads, width = q.shape
    last, groups = len(keys) - 1, keys[0].shape[2]
    q = (q * width**-0.5).reshape(batch, length, groups, heads // groups, width)
    same = pairs.segments[:, :, None] == pairs.segments[:, None, :]
    seen = [same & jnp.tri(length, k=-last, dtype=bool)]
    scores = [jnp.einsum("bikgd,bjkd->bikgj", q, keys[0])]
    drafted = []
    for number in range(1, last + 1):
        back = last - number
        seen.append((pairs.positions >= back)[..., None])
        key, value = (jnp.roll(x[number], back, axis=1) for x in (keys, values))
        scores.append(jnp.einsum("bikgd,bikd->bikg", q, key)[..., None])
        drafted.append(value)
    visible = jnp.concatenate(seen, axis=-1)[:, :, None, None]
    score = jnp.concatenate(scores, axis=-1).astype(jnp.float32)
    share = _share(score, visible, length if unmasked else 0).astype(q.dtype)
    out = jnp.einsum("bikgj,bjkd->bikgd", share[..., :length], values[0])
    for number, value in enumerate(drafted):
        out += share[..., length + number, None] * value[:, :, :, None]
    return out.reshape(batch, length, heads, width)


def _share(score: jax.Array, visible: jax.Array, columns: int) -> jax.Array:
    """Return softmax weights of the visible scores [..., N], 0 for others.

    Args:
      columns: columns of which the invisible ones have the score 0; 0: all others have -inf.
    """
    top = jnp.where(visible, score, -jnp.inf).max(-1, keepdims=True)
    top = jax.lax.stop_gradient(jnp.maximum(top, 0) if columns else top)
    weights = jnp.where(visible, jnp.exp(jnp.where(visible, score, 0) - top), 0)
    total = weights.sum(-1, keepdims=True)
    if columns:
        total += (columns - visible.sum(-1, keepdims=True)) * jnp.exp(-top)
    return weights / total
