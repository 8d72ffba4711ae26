"""DSpark's losses of single slots, and their sums: pure functions on logits.

Source: deepseek-ai/DeepSpec, DSpark (2026), section on training. Slot k, from 0, of the block at an
anchor predicts the token k + 1 places after the anchor.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax

from ...loss.terms import compute_slot_weights, cross_entropy, forward_kl, gather, l1_distance


class SlotLosses(NamedTuple):
    """Losses of slots, float32 [...] each.

    Attributes:
      ce: cross-entropy on the text's own token, in nats.
      l1: sum of absolute differences between the drafter's and the target's probabilities, 0 to 2.
      kl: KL(target || drafter) in nats, the objective of this project's other block drafters.
    """

    ce: jax.Array
    l1: jax.Array
    kl: jax.Array


def compute_slot_losses(logits: jax.Array, teacher: jax.Array, labels: jax.Array) -> SlotLosses:
    """Compute the losses of slots.

    Args:
      logits: [..., V], of the drafter, with the Markov head's bias.
      teacher: [..., V], of the target at the same place.
      labels: int32 [...], the text's tokens as columns of `logits`.
    """
    return SlotLosses(
        cross_entropy(logits, labels), l1_distance(logits, teacher), forward_kl(logits, teacher)
    )


def accept_rate(l1: jax.Array) -> jax.Array:
    """Compute the probability [...] that rejection sampling accepts a draft: 1 - l1 / 2."""
    return jnp.clip(1 - l1 / 2, 0, 1)


def confidence_loss(logits: jax.Array, accept: jax.Array) -> jax.Array:
    """Compute the binary cross-entropy [...] of confidence logits; `accept` is not learnt from."""
    return optax.sigmoid_binary_cross_entropy(logits, jax.lax.stop_gradient(accept))


def compute_block_weights(batch, slots: int, gamma: float | None) -> jax.Array:
    """Compute weights float32 [B, A, slots]: exp(-k / gamma) up to the first slot without a label.

    A slot has a label as in `training.loss.terms.compute_slot_weights`. From the first slot of a
    block that has none, all weights are 0.

    Args:
      batch: see `compute_slot_weights`.
      slots: tokens that a block predicts.
      gamma: decay length in slots; None weights all alike.
    """
    weights = compute_slot_weights(batch, slots + 1, gamma=gamma)[..., 1:]
    return weights * jnp.cumprod(weights > 0, axis=-1)


def gather_block_tokens(batch, slots: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Gather what the slots read and learn, int32 [B, A, slots] each.

    Returns:
      (places of the tokens before the predicted ones, those tokens, the predicted ones). Of slot 0
      the token before is the anchor. Places stop before the last token of a row.
    """
    before = batch["anchors"][..., None] + jnp.arange(slots)
    before = jnp.minimum(before, batch["tokens"].shape[1] - 2)
    return before, gather(batch["tokens"], before), gather(batch["tokens"], before + 1)


def sum_accept_length(accept: jax.Array, counted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sum up the tokens that rejection sampling is expected to commit per block, bonus included.

    Args:
      accept: float32 [B, A, K], probability that each slot is accepted if those before it were.
      counted: bool [B, A, K], slots with a label; a block without any is left out.

    Returns:
      (sum over blocks, number of blocks), float32.
    """
    length = 1 + jnp.cumprod(jnp.where(counted, accept, 0), axis=-1).sum(-1)
    blocks = counted.any(-1)
    return jnp.where(blocks, length, 0).sum(), blocks.sum(dtype=jnp.float32)
