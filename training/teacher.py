"""The frozen target in training: features and final hidden states of packed rows."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.targets.transformer import Transformer


class TeacherStates(NamedTuple):
    """What a drafter learns from.

    Attributes:
      features: [B, S, len(feature_layers) * E], outputs of the chosen decoder layers.
      hidden: [B, S, E] after the final norm; `Transformer.logits` of it are the target's next-token
        logits.
    """

    features: jax.Array
    hidden: jax.Array


def segment_mask(segments: jax.Array) -> jax.Array:
    """Mask words uint32 [B, S, ceil(S / 32)] under which a token sees its own document up to
    itself.

    Args:
      segments: int32 [B, S], see `training.packing.PackedRows`.
    """
    length = segments.shape[1]
    visible = (segments[:, :, None] == segments[:, None, :]) & jnp.tri(length, dtype=bool)
    words = jnp.pad(visible, ((0, 0), (0, 0), (0, -length % 32))).reshape(*segments.shape, -1, 32)
    return (words.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def teacher_states(
    config: TargetConfig, target, feature_layers: tuple[int, ...], batch
) -> TeacherStates:
    """States of a batch of packed rows; no gradient passes.

    Args:
      target: variables of `Transformer(config)`.
      batch: `tokens`, `positions` and `segments` int32 [B, S].
    """
    mask = segment_mask(batch["segments"])
    out = Transformer(config).apply(
        target, batch["tokens"], batch["positions"], mask=mask, feature_layers=feature_layers
    )
    return jax.lax.stop_gradient(TeacherStates(out.features, out.hidden))
