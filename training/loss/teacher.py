"""The frozen target in training: features and final hidden states of packed rows."""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.targets.transformer import Transformer


class TeacherStates(NamedTuple):
    """The target's states that a drafter learns from.

    Attributes:
      features: [B, S, len(feature_layers) * E], outputs of the chosen decoder layers.
      hidden: [B, S, E] after the final norm; `Transformer.logits` turns them into the target's
        next-token logits.
      best: int32 [B, S], the target's most probable next tokens; None: not computed. With them, a
        reduced draft vocabulary needs no logits of the whole one.
    """

    features: jax.Array
    hidden: jax.Array
    best: jax.Array | None = None


def make_segment_mask(segments: jax.Array) -> jax.Array:
    """Make mask words uint32 [B, S, ceil(S / 32)] that are causal within each document.

    Args:
      segments: int32 [B, S], see `training.data.packing.PackedRows`.
    """
    length = segments.shape[1]
    visible = (segments[:, :, None] == segments[:, None, :]) & jnp.tri(length, dtype=bool)
    words = jnp.pad(visible, ((0, 0), (0, 0), (0, -length % 32))).reshape(*segments.shape, -1, 32)
    return (words.astype(jnp.uint32) << jnp.arange(32, dtype=jnp.uint32)).sum(-1, dtype=jnp.uint32)


def compute_teacher_states(
    config: TargetConfig, target, feature_layers: tuple[int, ...], batch
) -> TeacherStates:
    """Compute the target's states of a batch of packed rows, without gradient.

    Args:
      config: of the target.
      target: variables of `Transformer(config)`.
      feature_layers: layers whose outputs are features.
      batch: `tokens`, `positions` and `segments` int32 [B, S].
    """
    mask = make_segment_mask(batch["segments"])
    out = Transformer(config).apply(
        target, batch["tokens"], batch["positions"], mask=mask, feature_layers=feature_layers
    )
    return jax.lax.stop_gradient(TeacherStates(out.features, out.hidden))


def find_best_tokens(config: TargetConfig, target, hidden: jax.Array) -> jax.Array:
    """Find the target's most probable next tokens, int32 [B, S], from its states [B, S, E].

    One sequence is projected at a time, so that the logits of S positions exist at a time.
    """

    def one(states: jax.Array) -> jax.Array:
        logits = Transformer(config).apply(target, states, method="logits")
        return logits.argmax(-1).astype(jnp.int32)

    return jax.lax.map(one, hidden)
