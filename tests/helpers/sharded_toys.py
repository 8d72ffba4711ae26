"""Tiny random targets of every family with every drafter, for tests of devices that share one."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import MoEConfig, TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.targets.transformer import Transformer
from training.drafters import named
from training.drafters.model_options import ModelOptions

SIZES = dict(hidden_size=16, num_layers=2, num_heads=8, head_dim=4, ffn_size=16, max_positions=256)
# Of two kv heads, 4 and 8 devices have copies.
TARGETS = {
    "qwen3": TargetConfig(
        **SIZES, num_kv_heads=2, family="qwen3", vocab_size=512, tie_embeddings=True
    ),
    "llama": TargetConfig(
        **SIZES, num_kv_heads=8, family="llama", vocab_size=512, qk_norm=False, attention_bias=True
    ),
    "qwen3_moe": TargetConfig(
        **SIZES,
        num_kv_heads=4,
        family="qwen3_moe",
        vocab_size=512,
        moe=MoEConfig(4, 2, 8, True, dense_layers=(0,)),
    ),
}
OPTIONS = ModelOptions(
    block_size=4,
    num_layers=1,
    feature_layers=(0, 1),
    mask_token=3,
    depth=3,
    hidden_size=16,
    lstm_size=6,
)


def make_params(family: str, methods: tuple[str, ...] = (), **sizes: int) -> Params:
    """Make a target, with other `sizes` if given, and the drafters of `training.drafters` named."""
    generator = np.random.default_rng(70)
    config = dataclasses.replace(TARGETS[family], **sizes)

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
