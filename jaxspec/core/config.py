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
      feature_layers: target decoder layers (0-based, their outputs) whose hidden states are the
        context.
      causal: slot i attends to block slots 0..i instead of the whole block.
      sliding_window: (window, one bool per layer), or None when every layer sees the whole context.
      target_hidden_size: width of a target feature.
      vocab_size: the target's vocabulary.
      draft_vocab_size: tokens that can be drafted, fewer than `vocab_size`; the drafter then has an
        output projection and a list of token ids of its own (see `jaxspec.drafters.base`). None:
        the target's whole vocabulary, and its projection.
      score_temperature: divisors of the draft logits when paths are scored, at temperature 0 and
        above it, fitted to how sure this drafter should be of itself; below 1 trees grow deeper,
        above 1 wider. What a draft is compared with differs: the most probable token at 0, a drawn
        one above.
    """

    block_size: int = 16
    mask_token_id: int = 0
    feature_layers: tuple[int, ...] = ()
    causal: bool = False
    sliding_window: tuple[int, tuple[bool, ...]] | None = None
    target_hidden_size: int = 0
    vocab_size: int = 0
    draft_vocab_size: int | None = None
    score_temperature: tuple[float, float] = (1.0, 1.0)

    @property
    def depth(self) -> int:
        """Longest path that can be drafted from one block."""
        return self.block_size - 1


@dataclasses.dataclass(frozen=True)
class FeatureDrafterConfig(TransformerConfig):
    """What drafters share that read features of target layers and have an output projection of
    their own.

    Attributes:
      feature_layers: target layers (0-based, their outputs), low to high; three as published.
      target_hidden_size, vocab_size: of the target.
      draft_vocab_size: tokens that can be drafted; None is the whole vocabulary.
      score_temperature: see `BlockDrafterConfig`.
    """

    feature_layers: tuple[int, ...] = ()
    target_hidden_size: int = 0
    vocab_size: int = 0
    draft_vocab_size: int | None = None
    score_temperature: tuple[float, float] = (1.0, 1.0)


@dataclasses.dataclass(frozen=True)
class EagleConfig(FeatureDrafterConfig):
    """An EAGLE-3 drafter (Li et al. 2025): one decoder layer whose attention reads [token embedding
    | feature], 2E wide.

    Attributes:
      depth: longest path that is drafted unless a call says otherwise; one forward a level.
      norm_before_residual: the residual connection carries the feature after its norm (a choice of
        the speculators schema).
    """

    depth: int = 8
    norm_before_residual: bool = False


@dataclasses.dataclass(frozen=True)
class SpecBlockConfig(FeatureDrafterConfig):
    """A SpecBlock drafter: every forward proposes a block of `slots` tokens after each of its start
    nodes.

    Attributes:
      slots: K, tokens of a block. blocks: M, blocks that follow each other on a path; may exceed
        those of training.
      rank_classes: classes of the rank head. rank_hidden: its inner width.
      rank_top: T, logits that its distribution features are made of (20 in training, 10 in the
        released inference code).
      prefix_broadcast: every slot reads the condition and the token; without it the slots after the
        first read their query alone (ablation).
      shift: the layer-wise shift (ablation).
    """

    slots: int = 4
    blocks: int = 2
    rank_classes: int = 4
    rank_hidden: int = 256
    rank_top: int = 10
    prefix_broadcast: bool = True
    shift: bool = True

    @property
    def depth(self) -> int:
        """Longest path that a round drafts unless a call says otherwise."""
        return self.slots * self.blocks


@dataclasses.dataclass(frozen=True)
class MedusaConfig:
    """Medusa heads (Cai et al. 2024): head i reads the target's last hidden state and proposes the
    token at depth i + 1.

    Attributes:
      hidden_size: width E of the target's hidden state.
      heads: number of heads.
      layers: residual blocks of a head.
      own_projection: every head has an output projection of its own; otherwise they share the
        target's.
      feature_layers: (number of target layers,): the hidden state after the final norm.
      vocab_size, score_temperature: as of `BlockDrafterConfig`.
    """

    hidden_size: int
    heads: int
    layers: int = 1
    own_projection: bool = True
    feature_layers: tuple[int, ...] = ()
    vocab_size: int = 0
    score_temperature: tuple[float, float] = (1.0, 1.0)
    draft_vocab_size: None = None

    @property
    def depth(self) -> int:
        """Longest path that can be drafted."""
        return self.heads


@dataclasses.dataclass(frozen=True)
class ParallelSpecConfig(FeatureDrafterConfig):
    """A ParallelSpec drafter (Xiao et al. 2024): an EAGLE-like layer that fills learned mask tokens
    in one forward.

    Attributes:
      slots: tokens of a draft: the last pair's own and one per mask token.
    """

    slots: int = 4

    @property
    def depth(self) -> int:
        """Longest path that can be drafted."""
        return self.slots


@dataclasses.dataclass(frozen=True)
class FalconConfig(FeatureDrafterConfig):
    """A Falcon drafter (Gao et al. 2024): an LSTM and a layer with a relaxed causal mask, `slots`
    tokens a forward.

    Attributes:
      slots: K, tokens of a forward. blocks: forwards that follow each other on a path unless a call
        says otherwise.
      lstm_size: width of the LSTM. lstm_layers: its layers.
    """

    slots: int = 2
    blocks: int = 3
    lstm_size: int = 0
    lstm_layers: int = 2

    @property
    def depth(self) -> int:
        """Longest path that a round drafts unless a call says otherwise."""
        return self.slots * self.blocks


@dataclasses.dataclass(frozen=True)
class SmallModelConfig:
    """A smaller model of the target's family as drafter (Leviathan et al. 2023; Chen et al. 2023),
    with a cache of its own.

    Attributes:
      model: its architecture; its vocabulary is the target's.
      depth: longest path that is drafted unless a call says otherwise; one forward a level.
      score_temperature: see `BlockDrafterConfig`.
    """

    model: TargetConfig
    depth: int = 8
    score_temperature: tuple[float, float] = (1.0, 1.0)
    feature_layers: tuple[int, ...] = ()
    draft_vocab_size: None = None

    @property
    def vocab_size(self) -> int:
        """Tokens of both models."""
        return self.model.vocab_size


# Its name as a method: it needs no weights, so every model has it.
PROMPT_LOOKUP = "prompt_lookup"


@dataclasses.dataclass(frozen=True)
class PromptLookupConfig:
    """Prompt lookup (Saxena 2023): what followed the text's last few tokens when they last
    occurred; no weights.

    Attributes:
      vocab_size: the target's.
      depth: tokens that are copied.
      longest, shortest: tokens of the n-gram that is looked up; longer ones are tried first.
    """

    vocab_size: int
    depth: int = 8
    longest: int = 3
    shortest: int = 1
    score_temperature: tuple[float, float] = (1.0, 1.0)
    feature_layers: tuple[int, ...] = ()
    draft_vocab_size: None = None
