"""The block drafter to train: its config for a target, and its first weights."""

from __future__ import annotations

import jax.numpy as jnp

from jaxspec.builders import make_builder
from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.hf_config import default_feature_layers
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig
from jaxspec.drafters.hf_fields import check_fits

from ...data.documents import load_bpe_tokenizer
from ..first_weights import draw_weights
from ..model_options import ModelOptions, check_draft_vocab

MASK_TOKENS = ("<|mask|>", "<mask>", "[MASK]")


def make_block_config(
    options: ModelOptions,
    target: TargetConfig,
    tokenizer: str | None = None,
    *,
    causal: bool = False,
) -> BlockDrafterConfig:
    """Make the config of a block drafter for `target`.

    Args:
      options: see `ModelOptions`.
      target: config of the target.
      tokenizer: folder of the target's tokenizer, which may have a mask token.
      causal: slot i sees slots 0..i only.

    Raises:
      ValueError: a size out of range, or no mask token.
    """
    if not 2 <= options.block_size <= 128:
        raise ValueError(f"block_size is {options.block_size}: give 2 to 128, the anchor included")
    if options.num_layers < 1:
        raise ValueError(f"num_layers is {options.num_layers}: give at least 1")
    check_draft_vocab(options, target)
    same = (
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "ffn_size",
        "rope",
        "norm_eps",
    )
    own = {name: getattr(options, name, None) for name in same}
    sizes = {name: getattr(target, name) if own[name] is None else own[name] for name in same}
    config = BlockDrafterConfig(
        **sizes,
        num_layers=options.num_layers,
        block_size=options.block_size,
        mask_token_id=find_mask_token(tokenizer)
        if options.mask_token is None
        else options.mask_token,
        feature_layers=options.feature_layers
        or default_feature_layers(target.num_layers, options.num_features),
        causal=causal,
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=options.draft_vocab,
        score_temperature=options.score_temperature,
        builder="" if options.builder is None else str(make_builder(options.builder)),
    )
    check_fits(config, target)
    return config


def find_mask_token(tokenizer: str | None) -> int:
    """Find the token of a tokenizer's folder that fills blocks.

    Raises:
      ValueError: there is no tokenizer, or it has no such token.
    """
    found = (
        [load_bpe_tokenizer(tokenizer).token_to_id(name) for name in MASK_TOKENS]
        if tokenizer
        else []
    )
    token = next((token for token in found if token is not None), None)
    if token is None:
        raise ValueError(
            f"the tokenizer has none of {', '.join(MASK_TOKENS)}: give --model.mask-token, "
            "an embedding row that no text uses (Qwen3: 151669; Llama 3.1: 128002)"
        )
    return token


def init_block_drafter(config: BlockDrafterConfig, seed: int):
    """Initialise float32 variables of `BlockDrafter(config)`."""

    def touch(drafter: BlockDrafter, features, block, positions):
        keys, values = drafter.context_kv(features, positions)
        return drafter(block, positions, filled((keys,), (values,), jnp.ones(1, jnp.int32)))

    features = jnp.zeros((1, 2, len(config.feature_layers) * config.target_hidden_size))
    block, positions = jnp.zeros((1, 2, config.hidden_size)), jnp.zeros((1, 2), jnp.int32)
    return draw_weights(BlockDrafter(config), seed, (features, block, positions), touch)
