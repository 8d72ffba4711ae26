"""The objective of TreeFlash: blocks at random anchors, corrected for the text's own tokens.

Source: arXiv 2606.03819, which publishes no trainer: forward KL to the target's distribution at
every slot, the true token before it as the condition, early slots weighted more. Ours is a small
loss of the slots without the correction, from which drafting takes the tokens to condition on.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.treeflash.network import TreeFlash, TreeFlashConfig

from ...loss.objective import LossOptions, get_drafter_inputs, make_per_row
from ...loss.slot_losses import check_options, gather_rows, sum_losses
from ...loss.terms import compute_slot_weights, gather
from ...loss.tiles import map_tiled_rows
from ..dflash.forward import block_hidden
from .model import BACKBONE


@dataclasses.dataclass
class TreeFlashOptions:
    """What is learnt beside the corrected distributions, and what is trained.

    Attributes:
      marginal: weight of the same loss of the slots without the correction; ours.
      freeze_backbone: train the correction alone, on the backbone of `--init`. No gradient of the
        backbone is computed, and `marginal` is reported, not learnt.
    """

    marginal: float = 0.1
    freeze_backbone: bool = False


def make_treeflash_loss(
    config: TreeFlashConfig,
    target_config: TargetConfig,
    options: LossOptions,
    own: TreeFlashOptions | None = None,
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`. The condition of a slot is the text's
    token before it (teacher forcing), so `accept_length` is that of a chain which drafts from its
    own tokens. Other names: `corrected` and `marginal`, the two losses in nats per slot, weighted
    as `loss` = corrected + weight * marginal.

    If the frozen variables hold `backbone`, it is read from there, and `params` holds the
    correction alone.

    Raises:
      ValueError: an option is out of range.
    """
    own = own or TreeFlashOptions()
    check_options(options)
    if own.marginal < 0:
        raise ValueError(f"the weight of the marginal loss is {own.marginal}: give 0 or more")
    if own.freeze_backbone and not config.correction:
        raise ValueError(
            "the backbone is frozen, and there is no correction to train: leave freeze-backbone out"
        )
    per_slot = make_treeflash_row(target_config, options, own)

    def loss(params, target, batch):
        if BACKBONE in target:
            params = {"params": params["params"] | {BACKBONE: target[BACKBONE]}}
        states, weights, embedding, features = get_drafter_inputs(
            config, target_config, options, params, target, batch
        )
        backbone = {"params": weights["params"][BACKBONE]}
        residual = block_hidden(
            config,
            backbone,
            embedding,
            batch,
            features,
            chunk=options.anchor_chunk,
            method="residual",
        )[:, :, 1:]
        if BACKBONE in target:
            residual = jax.lax.stop_gradient(residual)
        before = batch["anchors"][..., None] + jnp.arange(config.depth)
        before = jnp.minimum(before, batch["tokens"].shape[1] - 1)
        previous = jnp.take(embedding, gather(batch["tokens"], before), axis=0)
        module = TreeFlash(config)
        corrected = module.apply(weights, residual, previous, method="correct")
        marginal = module.apply(weights, residual, method="marginal")
        slots = compute_slot_weights(batch, config.block_size, gamma=options.gamma)[..., 1:]
        rows = gather_rows(batch, states, config.depth, with_teacher=options.kind != "ce")
        hidden = jnp.concatenate([corrected, marginal], axis=-1)
        flat = jax.tree.map(lambda array: array.reshape(-1, *array.shape[3:]), (hidden, rows))
        values, (*flags, one, other) = map_tiled_rows(per_slot, options.tile, *flat, target)
        values, right, drafted, one, other = (
            array.reshape(slots.shape) for array in (values, *flags, one, other)
        )
        found = sum_losses((values, right, drafted), slots)
        parts = {"corrected": one, "marginal": other}
        return found | {
            name: (jnp.where(slots > 0, part * slots, 0).sum(), slots.sum())
            for name, part in parts.items()
        }

    return loss


def make_treeflash_row(
    target_config: TargetConfig, options: LossOptions, own: TreeFlashOptions
) -> Callable:
    """Make the `per_row` of `training.loss.tiles.map_tiled_rows`.

    A slot's `hidden` [2E] is what is projected with the correction, and without it. The extras are
    those of `make_per_row`, and the two losses.
    """
    per_row = make_per_row(target_config, options, reduced=False)

    def per_slot(hidden, rows, target):
        corrected, marginal = jnp.split(hidden, 2, axis=-1)
        one, flags = per_row(corrected, rows, target)
        other, _ = per_row(marginal, rows, target)
        return one + own.marginal * other, (*flags, one, other)

    return per_slot
