"""Train a small language model as a drafter: next-token losses at every position of packed rows."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.draft_model.drafter import DraftModelConfig
from jaxspec.targets.transformer import Transformer

from ..loss.objective import LossOptions, cast_leaves, get_target_states
from ..loss.slot_losses import check_options, compute_weights, make_slot_losses, sum_losses
from ..loss.teacher import make_segment_mask
from .model_options import ModelOptions, check_sizes
from .presets import make_mini_head_preset
from .record import TrainingRecord


def make_draft_model_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> DraftModelConfig:
    """Make the config of a language model of the target's family, half as wide by default.

    Raises:
      ValueError: a size is out of range, or a reduced draft vocabulary was asked for.
    """
    check_sizes(options, target)
    if options.draft_vocab is not None:
        raise ValueError("a draft model drafts the whole vocabulary: leave draft_vocab out")
    sizes = {
        name: getattr(options, name)
        for name in ("num_heads", "num_kv_heads", "head_dim", "ffn_size")
    }
    model = dataclasses.replace(
        target,
        hidden_size=options.hidden_size or target.hidden_size // 2,
        num_layers=options.num_layers,
        **{name: value for name, value in sizes.items() if value is not None},
    )
    return DraftModelConfig(
        model, options.depth or DraftModelConfig.depth, options.score_temperature
    )


def make_draft_model_loss(
    config: DraftModelConfig, target_config: TargetConfig, options: LossOptions
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`. A position counts if its next token
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
        weights = {"params": cast_leaves(params["params"], options.dtype)}
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


def init_draft_model(config: DraftModelConfig, seed: int):
    """Initialise random float32 variables of the model."""
    token = jnp.zeros((1, 2), jnp.int32)
    return jax.jit(Transformer(config.model).init)(jax.random.key(seed), token, token)


DRAFT_MODEL = TrainingRecord(
    name="draft_model",
    what="A small language model that drafts by itself",
    config=make_draft_model_config,
    init=lambda config, seed, head: init_draft_model(config, seed),
    loss=lambda config, target, loss, own: make_draft_model_loss(config, target, loss),
    presets={
        "draft_model": make_mini_head_preset(
            "draft_model",
            dict(
                num_layers=4,
                hidden_size=160,
                num_heads=2,
                num_kv_heads=1,
                head_dim=64,
                ffn_size=640,
            ),
            gamma=None,
        )
    },
)
