"""The SpecBlock drafter to train: its config for a target, and its first weights."""

from __future__ import annotations

import dataclasses

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.specblock.drafter import check_sizes
from jaxspec.drafters.specblock.network import (
    SpecBlock,
    SpecBlockConfig,
    rank_features,
    slot_positions,
)

from ..eagle3.model import make_wide_config
from ..model_options import ModelOptions


def make_specblock_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> SpecBlockConfig:
    """Make the config of a SpecBlock drafter for `target`; ValueError: a size is out of range."""
    names = ("num_layers", "slots", "blocks", "rank_top", "prefix_broadcast", "shift")
    own = {name: getattr(options, name) for name in names}
    config = make_wide_config(SpecBlockConfig, options, target, **own)
    if options.match_layers:
        config = dataclasses.replace(config, qk_norm=target.qk_norm)
    else:  # Its heads share the hidden width, whatever the target's do.
        config = dataclasses.replace(config, head_dim=config.hidden_size // config.num_heads)
    check_sizes(config)
    return config


def init_specblock(config: SpecBlockConfig, seed: int):
    """Initialise float32 variables {"params"} as the authors do.

    Projections are uniform within 1 / sqrt(inputs), queries normal (0.02), norms 1. The shift
    replaces the state instead of adding to it, so projections must not start small.
    """
    rows = jnp.zeros((1, 1, config.hidden_size))

    def touch(module: SpecBlock, features, tokens):
        hidden, _, _ = module(
            module.condition(features),
            tokens,
            slot_positions(jnp.zeros((1, 1), jnp.int32), config.slots),
        )
        return module.rank(
            module.final(hidden),
            rank_features(module.logits(module.final(hidden)), config.rank_top),
        )

    def init(key):
        features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))
        params = SpecBlock(config).init(key, features, rows, method=touch)
        leaves, tree = jax.tree_util.tree_flatten_with_path(params)
        keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
        return jax.tree.unflatten(
            tree, [_draw(key, path, leaf) for key, (path, leaf) in zip(keys, leaves, strict=True)]
        )

    return jax.jit(init)(jax.random.key(seed))


def _draw(key, path, leaf: jax.Array) -> jax.Array:
    if path[-1].key not in ("kernel", "fuse", "lm_head"):
        return leaf
    bound = leaf.shape[0] ** -0.5
    return jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)
