"""The drafter to train: its config for a target, and its first weights."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.core.near_miss import choose_one
from jaxspec.drafters.dflash.config import BlockDrafterConfig
from jaxspec.drafters.dflash.hf_config import default_feature_layers
from jaxspec.drafters.dflash.network import BlockDrafter
from jaxspec.drafters.hf_fields import check_fits

from .optimizer import zero_residual


@dataclasses.dataclass
class ModelOptions:
    """Sizes and options of the drafter; None is the target's value, or else the method's.

    Attributes:
      kind: `dflash` (slots see the whole block), `jetspec` (slot i sees slots 0..i), or another of
        `training.methods`.
      block_size: slots of a block drafter's block, the anchor included.
      num_layers: decoder layers.
      feature_layers: target layers, 0-based, whose outputs are the context; None spreads
        `num_features` evenly as DFlash does.
      num_features: number of layers to choose if `feature_layers` is None.
      num_heads, num_kv_heads, head_dim, ffn_size: sizes of a decoder layer.
      mask_token: row of the target's embedding table that fills a block: a token that no text
        holds. None looks for the tokenizer's own mask token.
      score_temperature: how decoding scores paths, greedily and with sampling, see
        `jaxspec.core.config.DrafterConfig`. Values below 1 suit drafters trained partly on sampled
        text, which are less confident of greedy text than they should be.
      draft_vocab: number of tokens that can be drafted, the most frequent ones of the data; None
        for all of the target's. Other engines read such a `dflash` drafter in the speculators
        schema, and cannot read such a `jetspec` head.
      slots: tokens per forward (`specblock` 4, `parallelspec` 4, `falcon` 2), heads (`medusa` 4).
      blocks: number of consecutive blocks in decoding (`specblock` 2, `falcon` 3).
      depth: longest drafted path of `eagle3` and `small`, 8.
      hidden_size: width of a `small` model, half the target's.
      lstm_size: width of `falcon`'s LSTM.
      own_projection: `medusa` heads have output projections of their own.
      prefix_broadcast: ablation of `specblock`.
      shift: ablation of `specblock`.
      markov_rank: width of `dspark`'s Markov head, 256; 0 for none.
      markov_head: `vanilla` (if None), `gated` or `rnn`, the kind of `dspark`'s Markov head.
      confidence: `dspark` has a confidence head.
      confidence_with_markov: which reads the previous token's row of the Markov head too.
      sample_from_anchor: the anchor's slot of `dspark` predicts the first token, so a block of
        `block_size` slots drafts as many tokens; otherwise one less, as `dflash` and `jetspec`.
      causal: `dspark` on a `jetspec` backbone, whose slot i sees slots 0..i.
      zero_residual: start with every layer as the identity, which suits the Muon recipes, instead
        of random weights.
    """

    kind: str = "jetspec"
    block_size: int = 16
    num_layers: int = 5
    feature_layers: tuple[int, ...] | None = None
    num_features: int = 5
    num_heads: int | None = None
    num_kv_heads: int | None = None
    head_dim: int | None = None
    ffn_size: int | None = None
    mask_token: int | None = None
    score_temperature: tuple[float, float] = (1.0, 1.0)
    zero_residual: bool = False
    draft_vocab: int | None = None
    slots: int | None = None
    blocks: int | None = None
    depth: int | None = None
    hidden_size: int | None = None
    lstm_size: int | None = None
    own_projection: bool = True
    prefix_broadcast: bool = True
    shift: bool = True
    markov_rank: int | None = None
    markov_head: Literal["vanilla", "gated", "rnn"] | None = None
    confidence: bool = True
    confidence_with_markov: bool = True
    sample_from_anchor: bool = True
    causal: bool | None = None


KINDS = {"dflash": False, "jetspec": True}
MASK_TOKENS = ("<|mask|>", "<mask>", "[MASK]")


def make_drafter_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> BlockDrafterConfig:
    """Make the config of the drafter of `options` for `target`.

    Args:
      options: see `ModelOptions`.
      target: config of the target.
      tokenizer: folder of the target's tokenizer, which may have a mask token.

    Raises:
      ValueError: unknown kind, a size out of range, or no mask token.
    """
    if options.kind not in KINDS:
        raise ValueError(f"unknown kind {options.kind!r}: {choose_one(options.kind, KINDS)}")
    if not 2 <= options.block_size <= 128:
        raise ValueError(f"block_size is {options.block_size}: give 2 to 128, the anchor included")
    if options.num_layers < 1:
        raise ValueError(f"num_layers is {options.num_layers}: give at least 1")
    if options.draft_vocab is not None and not 1 <= options.draft_vocab < target.vocab_size:
        raise ValueError(
            f"draft_vocab is {options.draft_vocab}: give 1 to {target.vocab_size - 1} tokens, "
            f"or None for the target's {target.vocab_size}"
        )
    same = (
        "hidden_size",
        "num_heads",
        "num_kv_heads",
        "head_dim",
        "ffn_size",
        "rope_theta",
        "rope_scaling",
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
        causal=KINDS[options.kind],
        target_hidden_size=target.hidden_size,
        vocab_size=target.vocab_size,
        draft_vocab_size=options.draft_vocab,
        score_temperature=options.score_temperature,
    )
    check_fits(config, target)
    return config


def find_mask_token(tokenizer: str | None) -> int:
    from .data import load_bpe_tokenizer

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


def init_drafter(config: BlockDrafterConfig, seed: int, *, residual: bool = True):
    """Initialise float32 variables of `BlockDrafter(config)`.

    With `residual` False, every layer starts as the identity.
    """

    def touch(drafter: BlockDrafter, features, block, positions):
        keys, values = drafter.context_kv(features, positions)
        return drafter(block, positions, filled(keys, values, jnp.ones(1, jnp.int32)))

    features = jnp.zeros((1, 2, len(config.feature_layers) * config.target_hidden_size))
    block, positions = jnp.zeros((1, 2, config.hidden_size)), jnp.zeros((1, 2), jnp.int32)
    params = jax.jit(
        lambda key: BlockDrafter(config).init(key, features, block, positions, method=touch)
    )(jax.random.key(seed))
    return params if residual else zero_residual(params)
