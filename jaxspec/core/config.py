"""Frozen, hashable descriptions of targets and drafters.

They are static arguments of jitted functions: two equal configs share one compilation.
"""

from __future__ import annotations

import dataclasses
from typing import Any, NamedTuple

from jaxspec.core.rope import Rope
from jaxspec.core.runtime.near_miss import choose_one


@dataclasses.dataclass(frozen=True, kw_only=True)
class MoEConfig:
    """Sparse feed-forward of a layer: each token uses `experts_per_token` of `num_experts` experts.

    Attributes:
      num_experts, experts_per_token, expert_ffn_size: X, k and the width F of each expert.
      normalize_weights: whether the weights of a token's experts add up to one.
      score: what a router makes of its outputs: `softmax` over all experts, `chosen`: a softmax
        over the chosen ones (gpt-oss), or `sigmoid`, with a bias that only the choice sees
        (DeepSeek-V3, section 2.1.2).
      weight_scale: factor of the weights.
      groups, kept_groups: experts are chosen among those of `kept_groups` of so many groups, the
        groups whose two best experts score highest.
      router_bias, expert_bias: biases of the router, and of the experts' projections.
      clamp: (limit, gain) of gpt-oss's gated activation, (up + 1) gate sigmoid(gain gate), with
        gate and up clipped to the limit; None: as in dense layers.
      shared_ffn_size: width of an expert that every token uses; 0: there is none.
      shared_gate: whether that expert's result is multiplied by a sigmoid of a projection.
      beside_dense: whether a dense feed-forward runs too, each result with a norm of its own. The
        router then reads the stream itself, normalised and scaled, and the weight of an expert has
        a factor (Gemma 4).
      devices: number of devices that each hold some of the experts whole; 1: every device holds
        all experts, or a share of each.
    """

    num_experts: int
    experts_per_token: int
    expert_ffn_size: int
    normalize_weights: bool = True
    score: str = "softmax"
    weight_scale: float = 1.0
    groups: int = 1
    kept_groups: int = 1
    router_bias: bool = False
    expert_bias: bool = False
    clamp: tuple[float, float] | None = None
    shared_ffn_size: int = 0
    shared_gate: bool = False
    beside_dense: bool = False
    devices: int = 1


@dataclasses.dataclass(frozen=True, kw_only=True)
class DeltaConfig:
    """A gated delta net, which a layer has in place of attention (Yang et al. 2024; Qwen3.5).

    Attributes:
      key_heads: number Hk of heads of queries and keys.
      value_heads: number Hv of heads of values, each with a state [dk, dv]; head h reads key head
        h // (Hv // Hk).
      key_dim, value_dim: dk and dv.
      conv_width: rows that the causal convolution reads, a row's own included.
    """

    key_heads: int
    value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int = 4

    @property
    def channels(self) -> int:
        """Return the channels C of the convolution: queries, keys and values of all heads."""
        return 2 * self.key_heads * self.key_dim + self.value_heads * self.value_dim


@dataclasses.dataclass(frozen=True, kw_only=True)
class LayerConfig:
    """Sizes and options of a decoder layer. Layers with equal configs share one trace.

    Attributes:
      hidden_size: width E of the residual stream.
      num_heads: number H of query heads.
      num_kv_heads: number K of key/value heads; head h reads kv head h // (H // K).
      head_dim: D; H * D may differ from E.
      v_head_dim: Dv, width of values where it is not D (MiMo); None: D.
      ffn_size: width F of the gated feed-forward layer.
      activation: of the feed-forward's gate, `silu` or `gelu_tanh`.
      rope: rotation of queries and keys; None: they are not rotated (SmolLM3's NoPE layers).
      score_scale: factor of attention scores; None: D ** -0.5.
      window: number of positions that a row sees, its own included; None: all before it.
      sinks: whether each query head has a logit of its own in the softmax's denominator (gpt-oss).
      norm_eps: RMSNorm's epsilon.
      norm_centred: whether norms multiply by 1 + the stored weight (Gemma 3).
      norm_wide: whether norms multiply in float32 and round afterwards; otherwise the normalised
        input is rounded before.
      norms: where norms stand: `pre`: before attention and feed-forward; `post`: over their results
        (OLMo 2); `sandwich`: both (Gemma).
      qk_norm: normalise each head's queries and keys by RMSNorm before RoPE (Qwen3).
      qk_norm_whole: do so over all heads at once (OLMo 2).
      qkv_bias, o_bias: biases on the q, k and v projections, and on o.
      residual_scale: factor of what attention and feed-forward add to the stream (Granite).
      position_growth: (a, b): queries at position p grow by 1 + a log(1 + floor(p / b)) (Ministral
        3); None: not at all.
      output_gate: whether each query head has a gate, by whose sigmoid its result is multiplied;
        the query projection computes both (Qwen3.5).
      moe: sparse feed-forward in place of the dense one, or beside it; None: dense.
      k_is_v: whether values are what keys are projected to, before their norm (Gemma 4).
      v_norm: whether values are divided by their root mean square.
      v_scale: factor of values (MiMo).
      kv_source: the layer whose keys and values this one reads, which has none of its own then.
      per_layer_size: width P of inputs that every token has for every layer, which a layer adds
        through a gate (Gemma 3n and 4); 0: there are none.
      output_scale: whether a layer's result is multiplied by a stored number.
      cache_dtype: narrower dtype that keys and values are rounded to, and cached in; None: those of
        the activations.
      delta: gated delta net in place of attention; None: attention.
    """

    hidden_size: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    ffn_size: int
    v_head_dim: int | None = None
    activation: str = "silu"
    rope: Rope | None = Rope()
    score_scale: float | None = None
    window: int | None = None
    sinks: bool = False
    norm_eps: float = 1e-6
    norm_centred: bool = False
    norm_wide: bool = False
    norms: str = "pre"
    qk_norm: bool = True
    qk_norm_whole: bool = False
    qkv_bias: bool = False
    o_bias: bool = False
    residual_scale: float = 1.0
    position_growth: tuple[float, float] | None = None
    output_gate: bool = False
    moe: MoEConfig | None = None
    k_is_v: bool = False
    v_norm: bool = False
    v_scale: float = 1.0
    kv_source: int | None = None
    per_layer_size: int = 0
    output_scale: bool = False
    cache_dtype: str | None = None
    delta: DeltaConfig | None = None

    @property
    def value_dim(self) -> int:
        """Return the width Dv of a value."""
        return self.head_dim if self.v_head_dim is None else self.v_head_dim

    def count_columns(self) -> tuple[int, int, int]:
        """Count the columns of the projections to queries and their gates, keys, and values."""
        keys, values = (self.num_kv_heads * width for width in (self.head_dim, self.value_dim))
        if self.kv_source is not None:
            keys = values = 0
        queries = self.num_heads * self.head_dim * (1 + self.output_gate)
        return queries, keys, 0 if self.k_is_v else values

    def has_dense(self) -> bool:
        """Whether the layer has a dense feed-forward."""
        return self.moe is None or self.moe.beside_dense


class CacheGroup(NamedTuple):
    """Layers whose cached keys and values have the same sizes: their rows are one stacked array.

    Attributes:
      kv_heads, head_dim, value_dim: K, D and Dv of keys [K, D] and values [K, Dv] of a token.
      layers: the layers, ascending.
    """

    kv_heads: int
    head_dim: int
    value_dim: int
    layers: tuple[int, ...]

    def count_numbers(self) -> int:
        """Count the numbers that a token has in a layer's cache."""
        return self.kv_heads * (self.head_dim + self.value_dim)


class RecurrentGroup(NamedTuple):
    """Recurrent layers that are alike: their states are stacked arrays.

    Attributes:
      delta: what they are.
      layers: the layers, ascending.
    """

    delta: DeltaConfig
    layers: tuple[int, ...]


_CACHE_DTYPES = {"fp8": "float8_e4m3fn"}
_LAYER_FIELDS = tuple(field.name for field in dataclasses.fields(LayerConfig))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TransformerConfig(LayerConfig):
    """Decoder layers that are all alike, for targets and drafters.

    Attributes:
      num_layers: number L of decoder layers.
    """

    num_layers: int

    def list_layers(self) -> tuple[LayerConfig, ...]:
        """List the configs of all layers."""
        return (layer_of(self),) * self.num_layers

    def list_cache_groups(self) -> tuple[CacheGroup, ...]:
        """List the groups of layers that a cache stacks, in the order of their first layers.

        Layers that read another layer's keys and values are in none.
        """
        found: dict[tuple[int, int, int], list[int]] = {}
        for i, c in enumerate(self.list_layers()):
            if c.kv_source is None and c.delta is None:
                found.setdefault((c.num_kv_heads, c.head_dim, c.value_dim), []).append(i)
        return tuple(CacheGroup(*sizes, tuple(layers)) for sizes, layers in found.items())

    def list_recurrent_groups(self) -> tuple[RecurrentGroup, ...]:
        """List the groups of recurrent layers, in the order of their first layers."""
        found: dict[DeltaConfig, list[int]] = {}
        for i, c in enumerate(self.list_layers()):
            if c.delta is not None:
                found.setdefault(c.delta, []).append(i)
        return tuple(RecurrentGroup(delta, tuple(layers)) for delta, layers in found.items())

    def list_cache_places(self) -> tuple[tuple[int, int], ...]:
        """List where the keys and values that every layer reads are, or its state: the group, and
        the index there. Groups of recurrent layers are counted by themselves.
        """
        found = {
            layer: (number, index)
            for groups in (self.list_cache_groups(), self.list_recurrent_groups())
            for number, group in enumerate(groups)
            for index, layer in enumerate(group.layers)
        }
        sources = [c.kv_source for c in self.list_layers()]
        return tuple(found[i if own is None else own] for i, own in enumerate(sources))


@dataclasses.dataclass(frozen=True, kw_only=True)
class TargetConfig(TransformerConfig):
    """A target language model.

    Attributes:
      family: name of a record in `jaxspec.targets.families`, or one of your own.
      vocab_size: number V of rows of the embedding table; may exceed the tokenizer's vocabulary.
      tie_embeddings: whether the output projection is the transposed embedding table.
      max_positions: length of the longest sequence that the model was made for.
      embedding_scale: factor of the embeddings (Gemma: E ** 0.5).
      logit_scale: factor of the logits (Granite).
      softcap: bound c of the logits, c tanh(logits / c); None: there is none.
      per_layer_vocab_size: rows of the table of tokens' inputs for every layer.
      layers: configs of the layers, where they differ; empty if all are as the fields above say.
        Those describe the model as a whole then: its full attention, and its experts. Sizes of
        heads are those that config.json states first.
    """

    family: str = "qwen3"
    vocab_size: int = 0
    tie_embeddings: bool = False
    max_positions: int = 32768
    embedding_scale: float = 1.0
    logit_scale: float = 1.0
    softcap: float | None = None
    per_layer_vocab_size: int = 0
    layers: tuple[LayerConfig, ...] = ()

    def __post_init__(self):
        if self.layers and len(self.layers) != self.num_layers:
            raise ValueError(f"{len(self.layers)} configs of {self.num_layers} layers")

    def layer(self, index: int) -> LayerConfig:
        """Return the config of a layer."""
        return self.layers[index] if self.layers else layer_of(self)

    def list_layers(self) -> tuple[LayerConfig, ...]:
        """List the configs of all layers."""
        return self.layers or super().list_layers()

    def take_layers(self, count: int) -> TargetConfig:
        """Return the same model with its first `count` layers alone."""
        return dataclasses.replace(self, num_layers=count, layers=self.layers[:count])

    def with_cache(self, name: str | None) -> TargetConfig:
        """Return the same model with other keys and values: in `fp8`, or as activations (None).

        Raises:
          ValueError: `name` is anything else.
        """
        if name not in (None, *_CACHE_DTYPES):
            raise ValueError(f"unknown cache_dtype {name!r}: {choose_one(name, _CACHE_DTYPES)}")
        dtype = None if name is None else _CACHE_DTYPES[name]
        layers = tuple(dataclasses.replace(one, cache_dtype=dtype) for one in self.layers)
        return dataclasses.replace(self, cache_dtype=dtype, layers=layers)

    def count_sparse(self) -> int:
        """Count the layers with experts."""
        return sum(layer.moe is not None for layer in self.list_layers())


def layer_of(config: LayerConfig) -> LayerConfig:
    """Return what a config says of one of its layers."""
    return LayerConfig(**{name: getattr(config, name) for name in _LAYER_FIELDS})


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


# What drafters take over from their target: sizes, and how positions and norms count.
_SHARED = ("hidden_size", "num_heads", "num_kv_heads", "head_dim", "ffn_size", "rope", "norm_eps")


def share_sizes(target: TargetConfig) -> dict[str, Any]:
    """Return the fields of a `LayerConfig` that layers of a drafter take over from its target."""
    return {name: getattr(target, name) for name in _SHARED}
