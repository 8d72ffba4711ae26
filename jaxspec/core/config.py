"""Frozen, hashable descriptions of targets and drafters.

They are static arguments of jitted functions: two equal configs share one compilation.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Frequency-dependent RoPE scaling of Llama 3.1 (`rope_type: llama3`; Llama 3 report, 3.2)."""

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Sparse feed-forward layers: each token uses `experts_per_token` of `num_experts` experts.

    Attributes:
      num_experts, experts_per_token, expert_ffn_size: X, k and the width F of each expert.
      normalize_weights: whether the weights of a token's experts add up to one.
      dense_layers: layers without experts.
      devices: number of devices that each hold some of the experts whole; 1: every device holds
        all experts, or a share of each.
    """

    num_experts: int
    experts_per_token: int
    expert_ffn_size: int
    normalize_weights: bool
    dense_layers: tuple[int, ...] = ()
    devices: int = 1


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """Sizes and options of a decoder layer, for targets and drafters.

    Attributes:
      hidden_size: width E of the residual stream.
      num_layers: number L of decoder layers.
      num_heads: number H of query heads.
      num_kv_heads: number K of key/value heads; head h reads kv head h // (H // K).
      head_dim: D; H * D may differ from E.
      ffn_size: width F of the gated feed-forward layer.
      rope_theta: RoPE base.
      rope_scaling: Llama 3 scaling, or None.
      norm_eps: RMSNorm epsilon.
      qk_norm: normalise each head's queries and keys by RMSNorm before RoPE (Qwen3).
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
      family: name of a record in `jaxspec.targets`: `qwen3`, `llama`, `qwen3_moe`, or one of your
        own.
      vocab_size: number V of rows of the embedding table; may exceed the tokenizer's vocabulary.
      tie_embeddings: whether the output projection is the transposed embedding table.
      max_positions: length of the longest sequence that the model was made for.
      moe: sparse layers, or None for a dense model.
    """

    family: str = "qwen3"
    vocab_size: int = 0
    tie_embeddings: bool = False
    max_positions: int = 32768
    moe: MoEConfig | None = None


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """The part of a drafter's config that the decode loop reads.

    A config also has `depth`, a field or a property: the longest path that a round drafts, unless a
    call says otherwise.

    Attributes:
      vocab_size: number V of tokens of the target's vocabulary.
      draft_vocab_size: number of tokens that can be drafted; None for the whole vocabulary. A
        reduced vocabulary has its own output projection and list of token ids (see
        `jaxspec.drafters.base`).
      feature_layers: target layers (0-based, their outputs) that the drafter reads, low to high.
      score_temperature: divisors of the draft logits when paths are scored, for greedy decoding and
        for sampling. They are fitted to the drafter's confidence: below 1 trees grow deeper, above
        1 wider. The two differ because drafts are compared with the most probable token in greedy
        decoding and with a sampled one otherwise.
    """

    vocab_size: int = 0
    draft_vocab_size: int | None = None
    feature_layers: tuple[int, ...] = ()
    score_temperature: tuple[float, float] = (1.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureDrafterConfig(TransformerConfig, DrafterConfig):
    """A drafter that reads features of target layers and has an output projection of its own.

    Attributes:
      target_hidden_size: width of a target feature.
    """

    target_hidden_size: int = 0
