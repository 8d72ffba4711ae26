"""Train Falcon: chains of blocks at random anchors, with glancing."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.falcon.network import Falcon, FalconConfig

from ..eagle3.model import make_wide_config
from ..first_weights import draw_weights
from ..model_options import ModelOptions
from ..presets import LLAMA31_8B, make_large_head_preset, make_mini_head_preset
from ..record import TrainingRecord
from .loss import make_falcon_loss


@dataclasses.dataclass
class FalconOptions:
    """Falcon's glancing distillation.

    Attributes:
      glance: tokens of the text shown to the drafter, as a share of the rows that it drafts wrong.
    """

    glance: float = 0.25


def make_falcon_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> FalconConfig:
    """Make the config of a Falcon drafter for `target`; ValueError: a size is out of range."""
    size = options.lstm_size or target.hidden_size // 2
    own = {"num_layers": 1, "slots": options.slots, "blocks": options.blocks, "lstm_size": size}
    return make_wide_config(FalconConfig, options, target, **own)


def init_falcon(config: FalconConfig, seed: int, head: jax.Array | None = None):
    """Initialise float32 variables of `Falcon(config)`, see `draw_weights`."""

    def touch(model: Falcon, features, token, memory, positions):
        x, _ = model.read(token, model.fuse(features), memory)
        return model.logits(model(x, positions, None, None)[0])

    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))
    token, positions = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
    memory = jnp.zeros((1, 2 * config.lstm_layers * config.lstm_size))
    return draw_weights(Falcon(config), seed, (features, token, memory, positions), touch, head)


FALCON = TrainingRecord(
    name="falcon",
    what="A Falcon semi-autoregressive drafter",
    config=make_falcon_config,
    init=init_falcon,
    loss=lambda config, target, loss, own: make_falcon_loss(
        config, target, loss, glance=own.glance
    ),
    options=FalconOptions,
    presets={
        "falcon": make_mini_head_preset(
            "falcon", dict(draft_vocab=2048, ffn_size=512, slots=2, blocks=3)
        ),
        # The optimizer is EAGLE-3's: ours.
        "falcon-llama-3.1-8b": make_large_head_preset("falcon", LLAMA31_8B, slots=2, blocks=3),
    },
)
