"""The EAGLE-3 drafter to train: its config for a target, and its first weights.

Other drafters that read target features and train an output projection get their configs here too.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.eagle3.hf_config import default_feature_layers
from jaxspec.drafters.eagle3.network import EagleConfig, EagleDrafter
from jaxspec.drafters.files import for_target

from ..first_weights import draw_weights
from ..model_options import ModelOptions, check_sizes


def make_eagle_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> EagleConfig:
    """Make the config of an EAGLE-3 drafter for `target`; ValueError: a size is out of range."""
    return make_wide_config(EagleConfig, options, target, num_layers=1, depth=options.depth)


def make_wide_config(
    config_class: type, options: ModelOptions, target: TargetConfig, **own: Any
) -> Any:
    """Make the config of a drafter that reads target features and has its own output projection.

    Args:
      config_class: of the drafter.
      options: see `ModelOptions`.
      target: config of the target.
      own: fields of the class alone; None leaves its default.

    Raises:
      ValueError: a size is out of range.
    """
    check_sizes(options, target)
    sizes = ("num_heads", "num_kv_heads", "head_dim", "ffn_size")
    config = config_class(
        hidden_size=target.hidden_size,
        **{name: getattr(options, name) or getattr(target, name) for name in sizes},
        rope=target.rope,
        norm_eps=target.norm_eps,
        qk_norm=False,
        feature_layers=options.feature_layers or default_feature_layers(target.num_layers),
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=options.draft_vocab,
        score_temperature=options.score_temperature,
        **{name: value for name, value in own.items() if value is not None},
    )
    return for_target(config, target)


def init_eagle(config: EagleConfig, seed: int, head: jax.Array | None = None):
    """Initialise float32 variables of `EagleDrafter(config)`, see `draw_weights`."""

    def touch(drafter: EagleDrafter, features, tokens, positions):
        return drafter.logits(drafter(tokens, drafter.fuse(features), positions)[0])

    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))
    tokens, positions = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
    return draw_weights(EagleDrafter(config), seed, (features, tokens, positions), touch, head)
