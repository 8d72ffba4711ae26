"""Losses of drafters, per slot, and the weights under which slots are averaged.

A block has slots 0..B-1: slot 0 is the anchor, slot k predicts the token k positions after it.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax


def compute_slot_weights(batch, block_size: int, *, gamma: float | None = None) -> jax.Array:
    """Compute weights float32 [B, A, block_size] of the slots of each block.

    Slot k of anchor a counts if k > 0 and token a + k belongs to the anchor's document and is to be
    predicted. With `gamma` it is discounted by exp(-(k - 1) / gamma), because a slot is only
    reached if those before it were accepted.

    Args:
      batch: `anchors` int32 [B, A], `loss_mask` [B, S] (nonzero: to be predicted), `segments` int32
        [B, S], and `keep` [B, A], False for filler blocks.
      block_size: slots per block, the anchor included.
      gamma: decay length in slots; None weights all slots alike.
    """
    slots = jnp.arange(block_size)
    places = batch["anchors"][..., None] + slots
    length = batch["loss_mask"].shape[1]
    inside = jnp.minimum(places, length - 1)
    same = (
        gather(batch["segments"], inside) == gather(batch["segments"], batch["anchors"])[..., None]
    )
    learnt = (
        (gather(batch["loss_mask"], inside) != 0)
        & same
        & (places < length)
        & batch["keep"][..., None]
        & (slots > 0)
    )
    weights = learnt.astype(jnp.float32)
    return weights if gamma is None else weights * jnp.exp(-jnp.maximum(slots - 1, 0) / gamma)


def gather(rows: jax.Array, index: jax.Array) -> jax.Array:
    """Gather `rows` [B, S, ...] at `index` int32 [B, ...] of each row."""
    return jax.vmap(lambda row, places: row[places])(rows, index)


def cross_entropy(logits: jax.Array, labels: jax.Array) -> jax.Array:
    """Compute -log q(label) [...] in nats, DFlash's objective.

    Args:
      logits: [..., V].
      labels: int32 [...].
    """
    return optax.softmax_cross_entropy_with_integer_labels(logits.astype(jnp.float32), labels)


def forward_kl(logits: jax.Array, teacher: jax.Array, temperature: float = 1.0) -> jax.Array:
    """Compute KL(p || q) [...] in nats, JetSpec's objective.

    Args:
      logits: [..., V], of the drafter's distribution q.
      teacher: [..., V], logits of the target's distribution p.
      temperature: of both.
    """
    log_p, log_q = _log_softmax(teacher, temperature), _log_softmax(logits, temperature)
    return (jnp.exp(log_p) * (log_p - log_q)).sum(-1)


def l1_distance(logits: jax.Array, teacher: jax.Array) -> jax.Array:
    """Compute sum |p - q| [...], twice the total variation, DSpark's objective; see `forward_kl`."""
    p, q = (jax.nn.softmax(each.astype(jnp.float32), axis=-1) for each in (teacher, logits))
    return jnp.abs(p - q).sum(-1)


def reverse_kl(logits: jax.Array, teacher: jax.Array, temperature: float = 1.0) -> jax.Array:
    """Compute KL(q || p) [...], JetSpec's ablation, which accepts less; see `forward_kl`."""
    return forward_kl(teacher, logits, temperature)


def _log_softmax(logits: jax.Array, temperature: float) -> jax.Array:
    return jax.nn.log_softmax(logits.astype(jnp.float32) / temperature, axis=-1)
