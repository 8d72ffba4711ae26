"""The objective of block drafters: target forward, drafter forward and loss of packed rows.

Sources: JetSpec (forward KL on random anchors, section 4 and Table 4), DFlash as SpecForge trains
it (cross-entropy with depth decay).
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.network import BlockDrafterConfig

from ...loss.objective import LossOptions, get_target_states, make_per_row, sum_accuracies
from ...loss.terms import compute_slot_weights, gather
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
      The loss. `batch` comes from `training.data.pipeline.AnchorBatches`, with `features` [B, S, F],
      `hidden` [B, S, E] and `best` [B, S] of the target if they were cached. Names: `loss`, in nats per slot,
      weighted; `accuracy_k`, the share of slots k whose most probable token is the text's;
      `accept_length`, the tokens that a chain would commit at an anchor, bonus included (blocks
      that reach beyond the tokens to predict are left out). With a reduced draft vocabulary both
      distributions are over its tokens alone. As in EAGLE-3, a slot then does not count in `loss`
      if the target's most probable token (for `ce`, the text's) is not in it; the other figures
      count such tokens as missed.
    """
    if options.temperature <= 0:
        raise ValueError(f"loss temperature is {options.temperature}: give a number above 0")
    if options.gamma is not None and options.gamma <= 0:
        raise ValueError(
            f"gamma is {options.gamma}: give a decay length above 0, or None for equal weights"
        )
    per_row = make_per_row(target_config, options, reduced=config.draft_vocab_size is not None)

    def loss(params, target, batch):
        dtype = jnp.dtype(options.dtype)
        states = get_target_states(config, target_config, target, batch)
        cast = jax.tree.map(lambda leaf: leaf.astype(dtype), params)
        embedding = target["params"]["embedding"].astype(dtype)
        features = states.features.astype(dtype)
        hidden = block_hidden(config, cast, embedding, batch, features, chunk=options.anchor_chunk)[
            :, :, 1:
        ]
        weights = compute_slot_weights(batch, config.block_size, gamma=options.gamma)[..., 1:]
        before = batch["anchors"][..., None] + jnp.arange(config.depth)
        before = jnp.minimum(before, batch["tokens"].shape[1] - 2)
        rows = {"label": gather(batch["tokens"], before + 1).reshape(-1)}
        if options.kind != "ce":
            rows["teacher"] = gather(states.hidden, before).reshape(-1, states.hidden.shape[-1])
            if states.best is not None:
                rows["best"] = gather(states.best, before).reshape(-1)
        values, (right, drafted) = map_tiled_rows(
            per_row, options.tile, hidden.reshape(-1, hidden.shape[-1]), rows, target
        )
        values, right, drafted = (
            array.reshape(weights.shape) for array in (values, right, drafted)
        )
        counted = jnp.where(drafted, weights, 0)
        values = jnp.where(counted > 0, values, 0)
        return {
            "loss": ((values * counted).sum(), counted.sum()),
            **sum_accuracies(right, weights > 0),
        }

    return loss
