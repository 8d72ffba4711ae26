"""The objective of block drafters: target forward, drafter forward and loss of packed rows.

Sources: JetSpec (forward KL on random anchors, section 4 and Table 4), DFlash as SpecForge trains
it (cross-entropy with depth decay).
"""

from __future__ import annotations

from collections.abc import Callable

import jax

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.network import BlockDrafterConfig

from ...loss.objective import LossOptions, get_drafter_inputs, make_per_row
from ...loss.slot_losses import check_options, gather_rows, sum_losses
from ...loss.terms import compute_slot_weights
from ...loss.tiles import map_tiled_rows
from .forward import block_hidden


def make_block_loss(
    config: BlockDrafterConfig, target_config: TargetConfig, options: LossOptions
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    See `training.run.loop.fit`.

    Args:
      config: of the drafter.
      target_config: of the target, whose variables are the loss's second argument. With a reduced
        draft vocabulary they also hold the drafter's collection `draft` (see
        `jaxspec.drafters.base`).
      options: see `LossOptions`.

    Returns:
      The loss. `batch` comes from `training.data.pipeline.AnchorBatches`, with `features` [B, S,
      F], `hidden` [B, S, E] and `best` [B, S] of the target if they were cached. Names: `loss`, in
      nats per slot, weighted; `accuracy_k`, the share of slots k whose most probable token is the
      text's; `accept_length`, the tokens that a chain would commit at an anchor, bonus included
      (blocks that reach beyond the tokens to predict are left out). With a reduced draft vocabulary
      both distributions are over its tokens alone. As in EAGLE-3, a slot then does not count in
      `loss` if the target's most probable token (for `ce`, the text's) is not in it; the other
      figures count such tokens as missed.
    """
    check_options(options)
    per_row = make_per_row(target_config, options, reduced=config.draft_vocab_size is not None)

    def loss(params, target, batch):
        states, *inputs, features = get_drafter_inputs(
            config, target_config, options, params, target, batch
        )
        hidden = block_hidden(config, *inputs, batch, features, chunk=options.anchor_chunk)[
            :, :, 1:
        ]
        weights = compute_slot_weights(batch, config.block_size, gamma=options.gamma)[..., 1:]
        rows = gather_rows(batch, states, config.depth, with_teacher=options.kind != "ce")
        flat = jax.tree.map(lambda array: array.reshape(-1, *array.shape[3:]), (hidden, rows))
        values, flags = map_tiled_rows(per_row, options.tile, *flat, target)
        found = tuple(array.reshape(weights.shape) for array in (values, *flags))
        return sum_losses(found, weights)

    return loss
