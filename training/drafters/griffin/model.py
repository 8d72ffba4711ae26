"""The GRIFFIN drafter to train: its config for a target, and its first weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.files import for_target
from jaxspec.drafters.griffin.network import GriffinConfig, GriffinDrafter

from ..first_weights import draw_weights
from ..model_options import ModelOptions, check_sizes


def make_griffin_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> GriffinConfig:
    """Make the config of a GRIFFIN drafter for `target`.

    Raises:
      ValueError: a size is out of range, or an option is not GRIFFIN's.
    """
    check_sizes(options, target)
    for name in ("draft_vocab", "feature_layers"):
        if getattr(options, name) is not None:
            raise ValueError(
                f"{name} is not GRIFFIN's, which reads the target's last hidden state and drafts "
                "the whole vocabulary: leave it out"
            )
    sizes = ("num_heads", "num_kv_heads", "head_dim", "ffn_size")
    config = GriffinConfig(
        hidden_size=target.hidden_size,
        num_layers=1,
        **{name: getattr(options, name) or getattr(target, name) for name in sizes},
        rope=target.rope,
        norm_eps=target.norm_eps,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        score_temperature=options.score_temperature,
        depth=options.depth or GriffinConfig.depth,
    )
    return for_target(config, target)


def init_griffin(config: GriffinConfig, seed: int, head: jax.Array | None = None):
    """Initialise float32 variables of `GriffinDrafter(config)`, see `draw_weights`.

    `head` is not used: the target's output projection is.
    """
    wide, position = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
    return draw_weights(
        GriffinDrafter(config), seed, (wide, wide, position), GriffinDrafter.__call__
    )
