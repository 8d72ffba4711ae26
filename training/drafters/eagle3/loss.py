"""EAGLE-3's training-time test: train the drafter on its own outputs as features (Li et al. 2025).

At an anchor the drafter runs a chain of `steps` forward passes over the text's own tokens. Each
pass reads the output of the previous one, as in decoding. A step attends to the pairs before the
anchor's in its document and to the steps of its own chain up to itself. The drafter has one layer,
so the context's keys and values come directly from its inputs, and a chain is exact without running
the chains of other positions.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.eagle3.network import EagleConfig, EagleDrafter
from jaxspec.targets.layers import behind

from ...loss.objective import LossOptions, get_drafter_inputs
from ...loss.slot_losses import (
    check_options,
    compute_weights,
    make_slot_losses,
    map_anchors,
    sum_losses,
)
from ...loss.terms import gather


def make_eagle_loss(
    config: EagleConfig,
    target_config: TargetConfig,
    options: LossOptions,
    *,
    steps: int = 7,
    decay: float = 0.8,
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`.

    Args:
      config: of the drafter.
      target_config: of the target. The target's variables are the loss's second argument; with a
        reduced draft vocabulary they have the collection `draft` with its ids.
      options: see `LossOptions`. `fkl` has the same gradient as EAGLE-3's cross-entropy with the
        target's distribution; the values differ by that distribution's entropy.
      steps: forward passes of a chain, 1 to 32.
      decay: ratio of each step's weight to the previous step's.

    Returns:
      The loss; `batch` is the one of `make_block_loss`. An anchor p is the pair (h_{p-1}, x_p), and
      needs p - 1 in its document. Step k = 1, 2, … predicts the token at p + k. It counts if that
      token is to be learnt and in the same document, and if the target's most probable token is in
      the draft vocabulary. (The authors use the loss mask of the feature's token, two before the
      predicted one.) The names are those of `make_block_loss`; `loss` is in nats per slot, weighted
      with decay ** (k - 1).

    Raises:
      ValueError: a size is out of range, or EAGLE-3 cannot use one of the options.
    """
    check_options(options)
    if options.gamma is not None:
        raise ValueError(
            "gamma is the decay of block drafters: leave it at None and give EAGLE-3 `decay`"
        )
    if not 1 <= steps <= 32:
        raise ValueError(f"steps is {steps}: give 1 to 32 steps of training-time test")
    if not 0 < decay <= 1:
        raise ValueError(f"decay is {decay}: give a number above 0, 1 at most")
    losses_of = make_chain_losses(config, target_config, options, steps)
    return lambda params, target, batch: totals(losses_of(params, target, batch), batch, decay)


def make_chain_losses(
    config: EagleConfig, target_config: TargetConfig, options: LossOptions, steps: int
) -> Callable:
    """Make (params, target, batch) -> (values, right, drafted), [B, A, steps] each.

    The results cover every slot, whether or not it counts; see
    `training.loss.slot_losses.make_slot_losses`. They are differentiable with respect to `params`.
    """
    slot_losses = make_slot_losses(target_config, options)

    def losses_of(params, target, batch):
        states, weights, embedding, features = get_drafter_inputs(
            config, target_config, options, params, target, batch
        )
        hidden = chain_hidden(
            config, weights, embedding, batch, features, steps, options.anchor_chunk
        )
        hidden = EagleDrafter(config).apply(weights, hidden, method="final")
        return slot_losses(hidden, params["params"]["lm_head"], target, batch, states)

    return losses_of


def totals(found, batch, decay: float) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Sum up the results of `make_chain_losses` to those of `make_eagle_loss`."""
    learnt = compute_weights(batch, found[0].shape[-1], 1, None)
    return sum_losses(found, learnt * decay ** jnp.arange(learnt.shape[-1]))


def chain_hidden(
    config: EagleConfig, params, embedding, batch, features, steps: int, chunk: int | None = None
) -> jax.Array:
    """Run the chains at the anchors; return their outputs [B, A, steps, E] before the final norm.

    Args:
      config: of the drafter.
      params: variables of `EagleDrafter(config)`.
      embedding: [V, E], the target's embedding table.
      batch: `tokens` and `positions` int32 [B, S], positions from 0 in each document, and `anchors`
        int32 [B, A]. An anchor at position 0 has no pair: ignore its output.
      features: [B, S, len(feature_layers) * Et], of the target.
      steps: length of a chain, at most 32.
      chunk: anchors of each row computed together, and recomputed for the gradient; None computes
        all at once and keeps everything.
    """
    drafter, positions = EagleDrafter(config), batch["positions"]
    fused = drafter.apply(params, features, method="fuse")
    # No token follows the last column, so its pair is wrong; no chain reads it.
    after = jnp.take(embedding, jnp.roll(batch["tokens"], -1, axis=1), axis=0)
    k, v = drafter.apply(params, after, fused, positions, method="keys_values")
    context = filled((k[None],), (v[None],), None)
    pairs = jnp.maximum(batch["anchors"] - 1, 0)
    ahead = jnp.minimum(batch["anchors"][..., None] + jnp.arange(steps), positions.shape[1] - 1)
    drafted = gather(batch["tokens"], ahead)

    def chain(pair):
        index, place, feature, tokens = pair
        prefix = context.replace(length=place).prefix(0, index - place)

        def step(carry, this):
            feature, keys, values = carry
            number, token = this
            mask = jnp.broadcast_to(
                (jnp.uint32(2) << number.astype(jnp.uint32)) - 1, (len(place), 1, 1)
            )
            earlier, rope = (keys, values, number), (place + number)[:, None]
            embedded = jnp.take(embedding, token, axis=0)[:, None]
            hidden, new = drafter.apply(params, embedded, feature, rope, mask, prefix, earlier)
            fed = drafter.apply(params, hidden, method="feed")
            return (fed, *behind(earlier, *new)), hidden[:, 0]

        empty = jnp.zeros((len(place), steps, config.num_kv_heads, config.head_dim), feature.dtype)
        return jax.lax.scan(step, (feature[:, None], empty, empty), (jnp.arange(steps), tokens.T))[
            1
        ].swapaxes(0, 1)

    return map_anchors(
        chain, (pairs, gather(positions, pairs), gather(fused, pairs), drafted), chunk
    )
