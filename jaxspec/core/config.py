"""Frozen, hashable descriptions of targets and drafters.

They are static arguments of jitted functions: two equal configs share one compilation.
"""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True)
class RopeScaling:
    """Llama 3.1's frequency-dependent RoPE scaling (Llama 3 report, section 3.2; `rope_type:
    llama3`).
    """

    factor: float
    low_freq_factor: float
    high_freq_factor: float
    original_max_positions: int


@dataclasses.dataclass(frozen=True)
class MoEConfig:
    """Sparse feed-forward layers: `experts_per_token` of `num_experts` experts run for each
    token.
    """

    num_experts: int
    experts_per_token: int
    expert_ffn_size: int
    normalize_weights: bool
    dense_layers: tuple[int, ...] = ()


@dataclasses.dataclass(frozen=True)
class TransformerConfig:
    """What a decoder layer needs to know, shared by targets and drafters.

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
      family: name of a record in `jaxspec.targets`: `qwen3`, `llama`, `qwen3_moe`, or one of your
        own.
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class DrafterConfig:
    """What the decoding loop reads of any drafter's config. A config also has `depth`, the longest
    path that a round drafts unless a call says otherwise, as a field or a property.

    Attributes:
      vocab_size: tokens V of the target's vocabulary.
      draft_vocab_size: tokens that can be drafted where they are fewer than `vocab_size`; None: the
        whole vocabulary. A reduced vocabulary has an output projection and a list of token ids of
        its own (see `jaxspec.drafters.base`).
      feature_layers: target layers (0-based, their outputs) that the drafter reads, low to high.
      score_temperature: divisors of the draft logits when paths are scored, at temperature 0 and
        above it, fitted to how sure this drafter should be of itself; below 1 trees grow deeper,
        above 1 wider. What a draft is compared with differs: the most probable token at 0, a drawn
        one above.
    """

    vocab_size: int = 0
    draft_vocab_size: int | None = None
    feature_layers: tuple[int, ...] = ()
    score_temperature: tuple[float, float] = (1.0, 1.0)


@dataclasses.dataclass(frozen=True, kw_only=True)
class FeatureDrafterConfig(TransformerConfig, DrafterConfig):
    """What drafters share that read features of target layers and have an output projection of
    their own.

    Attributes:
      target_hidden_size: width of a target feature.
    """

    target_hidden_size: int = 0
