"""Losses of block drafters, per slot, and the weights under which slots are averaged.

A block has slots 0..B-1: slot 0 is the anchor, slot k predicts the token k positions after it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax


def slot_weights(
    anchors: jax.Array, loss_mask: jax.Array, block_size: int, *, gamma: float | None = None, keep: jax.Array | None = None
) -> jax.Array:
    """Weights float32 [B, A, block_size] of the slots of each block.

    Slot k of anchor a counts when k > 0, a + k is inside the sequence and `loss_mask[a + k]` is set; with `gamma` it is
    discounted by exp(-(k - 1) / gamma), since a slot is only reached when those before it were accepted.

    Args:
      anchors: int32 [B, A], positions of the anchors.
      loss_mask: [B, S], 1 where the token is to be learnt.
      gamma: decay length in slots; None weights all slots alike.
      keep: bool [B, A], False where a block is padding.
    """
    slots = jnp.arange(block_size)
    positions = anchors[..., None] + slots
    length = loss_mask.shape[1]
    seen = jax.vmap(lambda mask, index: mask[index])(loss_mask, jnp.minimum(positions, length - 1))
    weights = seen * (positions < length) * (slots > 0)
    if gamma is not None:
        weights = weights * jnp.exp(-jnp.maximum(slots - 1, 0) / gamma)
    return (weights if keep is None else weights * keep[..., None]).astype(jnp.float32)


def weighted_mean(values: jax.Array, weights: jax.Array) -> jax.Array:
    """sum(w v) / sum(w); 0 when every weight is 0."""
    return (values * weights).sum() / jnp.maximum(weights.sum(), 1e-6)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """-log q(label) [...] in nats, of logits [..., V] and labels int32 [...]: DFlash's objective."""
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)


def forward_kl(logits: jax.Array, teacher: jax.Array, temperature: float = 1.0) -> jax.Array:
    """KL(p || q) [...] in nats of the target's p against the drafter's q, both at `temperature`: JetSpec's objective."""
    log_p, log_q = _log_softmax(teacher, temperature), _log_softmax(logits, temperature)
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def reverse_kl(logits: jax.Array, teacher: jax.Array, temperature: float = 1.0) -> jax.Array:
    """KL(q || p) [...]: JetSpec's ablation, which accepts less."""
    return forward_kl(teacher, logits, temperature)


def _log_softmax(logits: jax.Array, temperature: float) -> jax.Array:
    return jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
