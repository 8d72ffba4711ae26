"""Tiny random targets of every family with every drafter, for tests of devices that share one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import LayerConfig, MoEConfig, TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.targets.transformer import Transformer
from training.drafters import named
from training.drafters.model_options import ModelOptions


def with_dense_layers(config: TargetConfig, *dense: int) -> TargetConfig:
    """Return a sparse target some of whose layers have no experts."""
    layers = [
        dataclasses.replace(layer, moe=None) if i in dense else layer
        for i, layer in enumerate(config.list_layers())
    ]
    return dataclasses.replace(config, layers=tuple(layers))


_OF_LAYERS = {field.name for field in dataclasses.fields(LayerConfig)}
SIZES = dict(hidden_size=16, num_layers=2, num_heads=8, head_dim=4, ffn_size=16, max_positions=256)
# Of two kv heads, 4 and 8 devices have copies.
TARGETS = {
    "qwen3": TargetConfig(
        **SIZES, num_kv_heads=2, family="qwen3", vocab_size=512, tie_embeddings=True
    ),
    "llama": TargetConfig(
        **SIZES,
        num_kv_heads=8,
        family="llama",
        vocab_size=512,
        qk_norm=False,
        qkv_bias=True,
        o_bias=True,
    ),
    "qwen3_moe": with_dense_layers(
        TargetConfig(
            **SIZES,
            num_kv_heads=4,
            family="qwen3_moe",
            vocab_size=512,
            moe=MoEConfig(num_experts=4, experts_per_token=2, expert_ffn_size=8),
        ),
        0,
    ),
}


def _vary(family: str, window: int | None, **fields) -> TargetConfig:
    """Make a target of few heads whose first layer has a window."""
    sizes = SIZES | {"num_kv_heads": 2, "family": family, "vocab_size": 512} | fields
    config = TargetConfig(**sizes)
    first, *rest = config.list_layers()
    layers = (dataclasses.replace(first, window=window), *rest)
    return dataclasses.replace(config, layers=layers)


# What these families have and the others do not: sinks, biases, clamped units, norms over all
# heads, shared experts.
TARGETS |= {
    "gpt_oss": _vary(
        "gpt_oss",
        6,
        qk_norm=False,
        qkv_bias=True,
        o_bias=True,
        sinks=True,
        norm_wide=True,
        moe=MoEConfig(
            num_experts=4,
            experts_per_token=2,
            expert_ffn_size=16,
            score="chosen",
            router_bias=True,
            expert_bias=True,
            clamp=(1.0, 1.702),
        ),
    ),
    "olmo3": _vary("olmo3", 6, norms="post", norm_wide=True, qk_norm_whole=True),
    "glm4_moe": _vary(
        "glm4_moe",
        None,
        qkv_bias=True,
        moe=MoEConfig(
            num_experts=4,
            experts_per_token=2,
            expert_ffn_size=8,
            score="sigmoid",
            groups=2,
            shared_ffn_size=16,
        ),
    ),
}
# Two groups of layers, wide heads whose values are their keys, and two that read those of others.
_GEMMA4 = _vary(
    "gemma4_text",
    6,
    num_layers=4,
    norms="sandwich",
    norm_wide=True,
    activation="gelu_tanh",
    score_scale=1.0,
    embedding_scale=4.0,
    tie_embeddings=True,
    v_norm=True,
    output_scale=True,
    per_layer_size=4,
    per_layer_vocab_size=512,
    moe=MoEConfig(num_experts=4, experts_per_token=2, expert_ffn_size=8, beside_dense=True),
)
_SLIDES, _FULL = (
    _GEMMA4.layers[0],
    dataclasses.replace(_GEMMA4.layers[1], head_dim=8),
)
TARGETS["gemma4_text"] = dataclasses.replace(
    _GEMMA4,
    layers=(
        _SLIDES,
        dataclasses.replace(_FULL, k_is_v=True),
        dataclasses.replace(_SLIDES, kv_source=0),
        dataclasses.replace(_FULL, kv_source=1),
    ),
)
# Values narrower than keys, and more kv heads where a layer slides.
_MIMO = _vary(
    "mimo_v2_flash",
    6,
    qk_norm=False,
    v_head_dim=2,
    v_scale=0.5,
    moe=MoEConfig(num_experts=4, experts_per_token=2, expert_ffn_size=8, score="sigmoid"),
)
TARGETS["mimo_v2_flash"] = dataclasses.replace(
    _MIMO,
    layers=(
        dataclasses.replace(_MIMO.layers[0], num_kv_heads=4, sinks=True),
        dataclasses.replace(_MIMO.layers[1], moe=None),
    ),
)
OPTIONS = ModelOptions(
    block_size=4,
    num_layers=1,
    feature_layers=(0, 1),
    mask_token=3,
    depth=3,
    hidden_size=16,
    lstm_size=6,
)


def make_params(family: str | TargetConfig, methods: tuple[str, ...] = (), **sizes: int) -> Params:
    """Make a target of a family or of a config, with other `sizes` if given, and the drafters of
    `training.drafters` named.
    """
    generator = np.random.default_rng(70)
    config = TARGETS[family] if isinstance(family, str) else family
    own = {name: size for name, size in sizes.items() if name in _OF_LAYERS}
    layers = tuple(dataclasses.replace(layer, **own) for layer in config.layers)
    config = dataclasses.replace(config, **sizes, layers=layers)

    def weights(shapes, scale):
        return jax.tree.map(
            lambda leaf: (
                jnp.asarray(generator.normal(scale=scale, size=leaf.shape), jnp.float32)
                if jnp.issubdtype(leaf.dtype, jnp.floating)
                else jnp.arange(2, 2 + leaf.size, dtype=leaf.dtype)
            ),
            shapes,
        )

    tokens = jnp.zeros((1, 2), jnp.int32)
    target = weights(
        jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens), 1.0
    )
    head, configs, drafters = jnp.zeros((config.hidden_size, config.vocab_size)), {}, {}
    for name in methods:
        options = dataclasses.replace(OPTIONS, kind=name)
        if name in ("draft_model", "griffin"):
            options = dataclasses.replace(options, feature_layers=None)
        configs[name] = named(name).config(options, config, None)
        init = functools.partial(named(name).init, configs[name], 0, head)
        drafters[name] = weights(jax.eval_shape(init), 0.4)
    return Params(target, drafters, Spec(config, tuple(configs.items())))
