"""Train a small language model as a drafter: next-token losses at every position of packed rows."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.draft_model.config import SmallModelConfig
from jaxspec.targets.transformer import Transformer

from .drafter_loss import LossOptions, get_target_states
from .slot_losses import check_options, compute_weights, make_slot_losses, sum_losses
from .teacher import make_segment_mask


def make_small_model_loss(
    config: SmallModelConfig, target_config: TargetConfig, options: LossOptions
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafter_loss.make_loss`. A position counts if its next token
    is to be learnt; anchors are not read. With `kind` fkl the model is distilled from the target
    (DistillSpec, Zhou et al. 2024), with `ce` it learns the text.

    Raises:
      ValueError: an option is out of range.
    """
    check_options(options)
    model, slot_losses = Transformer(config.model), make_slot_losses(target_config, options)

    def loss(params, target, batch):
        tokens, positions = batch["tokens"], batch["positions"]
        states = get_target_states(config, target_config, target, batch)
        weights = {
            "params": jax.tree.map(lambda leaf: leaf.astype(options.dtype), params["params"])
        }
        hidden = model.apply(
            weights, tokens, positions, mask=make_segment_mask(batch["segments"])
        ).hidden[:, :, None]
        own = params["params"]
        head = own["embedding"].T if config.model.tie_embeddings else own["lm_head"]
        everywhere = jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape)
        batch = batch | {"anchors": everywhere, "keep": batch["segments"] > 0}
        return sum_losses(
            slot_losses(hidden, head, target, batch, states), compute_weights(batch, 1, 0, None)
        )

    return loss


def init_small_model(config: SmallModelConfig, seed: int):
    """Initialise random float32 variables of the model."""
    token = jnp.zeros((1, 2), jnp.int32)
    return jax.jit(Transformer(config.model).init)(jax.random.key(seed), token, token)
