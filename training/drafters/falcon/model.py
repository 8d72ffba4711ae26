"""The Falcon drafter to train: its config for a target, and its first weights."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.falcon.network import Falcon, FalconConfig

from ..eagle3.model import make_wide_config
from ..model_options import ModelOptions


def make_falcon_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> FalconConfig:
    """Make the config of a Falcon drafter for `target`; ValueError: a size is out of range."""
    size = options.lstm_size or target.hidden_size // 2
    own = {"num_layers": 1, "slots": options.slots, "blocks": options.blocks, "lstm_size": size}
    return make_wide_config(FalconConfig, options, target, **own)


def init_falcon(config: FalconConfig, seed: int, head: jax.Array | None = None):
    """Initialise float32 variables {"params": ...} of `Falcon(config)`.

    Args:
      config: of the drafter.
      seed: of the random weights.
      head: [E, D], initial output projection, for example the target's columns of the draft
        vocabulary; None draws it at random.
    """

    def touch(model: Falcon, features, token, memory, positions):
        x, _ = model.read(token, model.fuse(features), memory)
        return model.logits(model(x, positions, None, None)[0])

    features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))
    token, positions = jnp.zeros((1, 1, config.hidden_size)), jnp.zeros((1, 1), jnp.int32)
    memory = jnp.zeros((1, 2 * config.lstm_layers * config.lstm_size))
    start = jax.jit(
        lambda key: Falcon(config).init(key, features, token, memory, positions, method=touch)
    )
    params = start(jax.random.key(seed))["params"]
    return {
        "params": params if head is None else params | {"lm_head": jnp.asarray(head, jnp.float32)}
    }
