"""Frozen, hashable descriptions of targets and drafters.

They are static arguments of jitted functions: two equal configs share one compilation.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent RoPE scaling (Llama 3 report, section 3.2; `rope_type: llama3`)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Sparse feed-forward layers: `experts_per_token` of `num_experts` experts run for each token."""

    num_experts: int
    experts_per_token: int
    expert_ffn_size: int
    normalize_weights: bool
    dense_layers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """What a decoder layer needs to know, shared by targets and block drafters.

    Attributes:
      hidden_size: width E of the residual stream.
      num_layers: decoder layers L.
      num_heads: query heads H.
      num_kv_heads: key/value heads K; head h reads kv head h // (H // K).
      head_dim: D; H * D need not equal E.
      ffn_size: width F of the gated feed-forward layer.
      rope_theta: RoPE base.
      rope_scaling: Llama 3 scaling, or None.
      norm_eps: RMSNorm epsilon.
      qk_norm: RMSNorm over each head's queries and keys before RoPE (Qwen3).
      attention_bias: biases on the q, k, v and o projections.
    """

    hidden_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    rope_theta: float = 1e6
    rope_scaling: RopeScaling | None = None
    norm_eps: float = 1e-6
    qk_norm: bool = True
    attention_bias: bool = False


@dataclasses.dataclass(frozen=True)
class TargetConfig(TransformerConfig):
    """A target language model.

    Attributes:
      family: `qwen3`, `llama` or `qwen3_moe`.
      vocab_size: rows V of the embedding table (may exceed the tokenizer's).
      tie_embeddings: the output projection is the transposed embedding table.
      max_positions: longest sequence the model was made for.
      moe: sparse layers, or None for a dense model.
    """

    family: str = "qwen3"
    vocab_size: int = 0
    tie_embeddings: bool = False
    max_positions: int = 32768
    moe: MoEConfig | None = None


@dataclasses.dataclass(frozen=True)
class BlockDrafterConfig(TransformerConfig):
    """A DFlash drafter, or with `causal=True` a JetSpec causal parallel head.

    Attributes:
      block_size: slots of a block, the anchor included: `block_size - 1` tokens are drafted.
      mask_token_id: row of the target's embedding table that fills the slots after the anchor.
      feature_layers: target decoder layers (0-based, their outputs) whose hidden states are the context.
      causal: slot i attends to block slots 0..i instead of the whole block.
      sliding_window: (window, one bool per layer), or None when every layer sees the whole context.
      target_hidden_size: width of a target feature.
      vocab_size: the target's vocabulary.
      draft_vocab_size: tokens that can be drafted, fewer than `vocab_size`; the drafter then has an output projection and a
        list of token ids of its own (see `jaxspec.drafters.base`). None: the target's whole vocabulary, and its projection.
      score_temperature: divisor of the draft logits when paths are scored, fitted to how sure this drafter should be of
        itself; below 1 trees grow deeper, above 1 wider.
    """

    block_size: int = 16
    mask_token_id: int = 0
    feature_layers: tuple[int, ...] = ()
    causal: bool = False
    sliding_window: tuple[int, tuple[bool, ...]] | None = None
    target_hidden_size: int = 0
    vocab_size: int = 0
    draft_vocab_size: int | None = None
    score_temperature: float = 1.0

    @property
    def depth(self) -> int:
        """Longest path that can be drafted from one block."""
        return self.block_size - 1
