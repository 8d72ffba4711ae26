"""Published architectures by name, with random weights: speed and compilation need no checkpoint.

Sizes are those of the models' own config.json. Each target has a JetSpec head of the published
size: five layers, blocks of 16.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import zlib
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.core.config import MoEConfig, TargetConfig, layer_of, share_sizes
from jaxspec.core.params import Params, Spec
from jaxspec.core.rope import LinearScaling, Llama3Scaling, Rope, YarnScaling
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.drafters.dflash.shapes import head_config, init_head
from jaxspec.drafters.dspark.network import DSparkConfig
from jaxspec.drafters.dspark.shapes import init_variables, published_config
from jaxspec.drafters.eagle3.files import leaves as eagle_leaves
from jaxspec.drafters.eagle3.network import EagleConfig
from jaxspec.drafters.griffin.files import leaves as griffin_leaves
from jaxspec.drafters.griffin.network import GriffinConfig
from jaxspec.drafters.registry import record_of
from jaxspec.drafters.specblock.files import leaves as specblock_leaves
from jaxspec.drafters.specblock.network import SpecBlockConfig
from jaxspec.targets.layouts.quant import FOUR_BITS, INT4, contracted_axis, quantize_params
from jaxspec.targets.transformer import Transformer

DRAFTER = "jetspec"
# Inputs that share a scale.
_AWQ_GROUP, _MXFP4_GROUP = 128, 32


def _qwen3(hidden: int, layers: int, heads: int, ffn: int, *, tied: bool = False) -> TargetConfig:
    return TargetConfig(
        hidden_size=hidden,
        num_layers=layers,
        num_heads=heads,
        num_kv_heads=8,
        head_dim=128,
        ffn_size=ffn,
        vocab_size=151936,
        tie_embeddings=tied,
        max_positions=40960,
        family="qwen3",
    )


_QWEN3_30B = TargetConfig(
    hidden_size=2048,
    num_layers=48,
    num_heads=32,
    num_kv_heads=4,
    head_dim=128,
    ffn_size=6144,
    vocab_size=151936,
    max_positions=40960,
    family="qwen3_moe",
    moe=MoEConfig(num_experts=128, experts_per_token=8, expert_ffn_size=768),
)
_LLAMA_31_8B = TargetConfig(
    hidden_size=4096,
    num_layers=32,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=14336,
    rope=Rope(5e5, Llama3Scaling(8.0, 1.0, 4.0, 8192)),
    norm_eps=1e-5,
    qk_norm=False,
    family="llama",
    vocab_size=128256,
    max_positions=131072,
)
_SMOLLM2_135M = TargetConfig(
    hidden_size=576,
    num_layers=30,
    num_heads=9,
    num_kv_heads=3,
    head_dim=64,
    ffn_size=1536,
    rope=Rope(1e5),
    norm_eps=1e-5,
    qk_norm=False,
    family="llama",
    vocab_size=49152,
    tie_embeddings=True,
    max_positions=8192,
)
# The sizes of the model that ships, see jaxspec/zoo/mini.
_MINI = TargetConfig(
    hidden_size=320,
    num_layers=6,
    num_heads=5,
    num_kv_heads=1,
    head_dim=64,
    ffn_size=960,
    rope=Rope(1e4),
    vocab_size=4096,
    tie_embeddings=True,
    max_positions=2048,
)
_QWEN25_7B = TargetConfig(
    hidden_size=3584,
    num_layers=28,
    num_heads=28,
    num_kv_heads=4,
    head_dim=128,
    ffn_size=18944,
    qk_norm=False,
    qkv_bias=True,
    family="qwen2",
    vocab_size=152064,
    max_positions=32768,
)


def _slide(config: TargetConfig, window: int, full: Callable[[int], bool], **own: Any):
    """Give all layers but the `full` ones a window, and fields of their own."""
    base = layer_of(config)
    sliding = dataclasses.replace(base, window=window, **own)
    layers = tuple(base if full(i) else sliding for i in range(config.num_layers))
    return dataclasses.replace(config, layers=layers)


_GEMMA3_12B = _slide(
    TargetConfig(
        hidden_size=3840,
        num_layers=48,
        num_heads=16,
        num_kv_heads=8,
        head_dim=256,
        ffn_size=15360,
        activation="gelu_tanh",
        rope=Rope(1e6, LinearScaling(8.0)),
        score_scale=256**-0.5,
        norms="sandwich",
        norm_centred=True,
        norm_wide=True,
        family="gemma3_text",
        vocab_size=262208,
        tie_embeddings=True,
        max_positions=131072,
        embedding_scale=3840**0.5,
    ),
    1024,
    lambda i: (i + 1) % 6 == 0,
    rope=Rope(1e4),
)
_GPT_OSS_20B = _slide(
    TargetConfig(
        hidden_size=2880,
        num_layers=24,
        num_heads=64,
        num_kv_heads=8,
        head_dim=64,
        ffn_size=2880,
        rope=Rope(150000.0, YarnScaling(32.0, 4096, magnitude=1.3465735902799727, truncate=False)),
        sinks=True,
        norm_eps=1e-5,
        norm_wide=True,
        qk_norm=False,
        qkv_bias=True,
        o_bias=True,
        moe=MoEConfig(
            num_experts=32,
            experts_per_token=4,
            expert_ffn_size=2880,
            score="chosen",
            router_bias=True,
            expert_bias=True,
            clamp=(7.0, 1.702),
        ),
        family="gpt_oss",
        vocab_size=201088,
        max_positions=131072,
    ),
    128,
    lambda i: i % 2 == 1,
)
ARCHITECTURES: dict[str, TargetConfig] = {
    "qwen3-0.6b": _qwen3(1024, 28, 16, 3072, tied=True),
    "qwen3-1.7b": _qwen3(2048, 28, 16, 6144, tied=True),
    "qwen3-4b": _qwen3(2560, 36, 32, 9728, tied=True),
    "qwen3-8b": _qwen3(4096, 36, 32, 12288),
    "qwen3-14b": _qwen3(5120, 40, 40, 17408),
    "qwen3-32b": _qwen3(5120, 64, 64, 25600),
    "qwen3-30b-a3b": _QWEN3_30B,
    "llama-3.1-8b": _LLAMA_31_8B,
    "qwen2.5-7b": _QWEN25_7B,
    "gemma-3-12b": _GEMMA3_12B,
    "gpt-oss-20b": _GPT_OSS_20B,
    "smollm2-135m": _SMOLLM2_135M,
    "mini": _MINI,
}


def architecture(name: str, *, block_size: int = 16, drafter_layers: int = 5) -> Spec:
    """Return the target called `name` and a JetSpec head for it, without weights.

    The head reads features of five target layers, or three if the target has fewer than 9.

    Args:
      name: one of `ARCHITECTURES`.
      block_size: slots of the head's block, the anchor included.
      drafter_layers: number of layers of the head.

    Raises:
      ValueError: the name is unknown.
    """
    if name not in ARCHITECTURES:
        raise ValueError(f"unknown architecture {name!r}: {choose_one(name, ARCHITECTURES)}")
    target = ARCHITECTURES[name]
    head = head_config(target, block_size=block_size, num_layers=drafter_layers)
    return Spec(target, ((DRAFTER, head),))


def swap_drafter(spec: Spec, name: str) -> Spec:
    """Return `spec` with the drafter `name` of the published sizes in place of its JetSpec head.

    It reads three of the layers that the head reads; DSpark reads all of them.

    Args:
      spec: from `architecture`.
      name: `jetspec`, `dspark`, `eagle3`, `griffin` or `specblock`.

    Raises:
      ValueError: there is no such drafter here.
    """
    head = spec.drafters[0][1]
    made = {
        DRAFTER: lambda _: head,
        "dspark": dspark_config,
        "eagle3": eagle_config,
        "griffin": _griffin,
        "specblock": _specblock,
    }
    if name not in made:
        raise ValueError(f"unknown drafter {name!r}: {choose_one(name, ('ar', *made))}")
    return dataclasses.replace(spec, drafters=((name, made[name](spec)),))


def dspark_config(spec: Spec) -> DSparkConfig:
    """Return DSpark's config with as many layers as the head of `spec`, see `swap_drafter`."""
    head = spec.drafters[0][1]
    return published_config(spec.target, head.feature_layers, num_layers=head.num_layers)


def eagle_config(spec: Spec, draft_vocab: int = 32_000) -> EagleConfig:
    """Return EAGLE-3's config; it drafts `draft_vocab` tokens if the target has more."""
    target = spec.target
    vocab = draft_vocab if draft_vocab < target.vocab_size else None
    return EagleConfig(**_of_target(spec), qk_norm=False, num_layers=1, draft_vocab_size=vocab)


def _griffin(spec: Spec) -> GriffinConfig:
    sizes = _of_target(spec) | {"feature_layers": (spec.target.num_layers,)}
    # The authors' sizes, at 8B and elsewhere.
    return GriffinConfig(**sizes | {"num_kv_heads": spec.target.num_heads}, num_layers=1)


def _specblock(spec: Spec, draft_vocab: int = 32_000) -> SpecBlockConfig:
    vocab = draft_vocab if draft_vocab < spec.target.vocab_size else None
    own = dict(qk_norm=False, num_layers=2, draft_vocab_size=vocab)
    return SpecBlockConfig(**_of_target(spec), **own)


def _of_target(spec: Spec) -> dict[str, Any]:
    """Return the fields that a drafter of target features shares with its target."""
    target, head = spec.target, spec.drafters[0][1].feature_layers
    return share_sizes(target) | {
        "vocab_size": target.vocab_size,
        "feature_layers": (head[0], head[len(head) // 2], head[-1]),
        "target_hidden_size": target.hidden_size,
    }


def abstract_params(spec: Spec, dtype=jnp.bfloat16, quantize: str | None = None) -> Params:
    """Make `Params` of `spec` (a target and drafters) with `jax.ShapeDtypeStruct` leaves; nothing
    is allocated.

    Args:
      spec: the target and its drafters.
      dtype: of floats.
      quantize: `int8` or `fp8` weights of the target; or `int4`: projections of layers as in
        AWQ's files, experts as in MXFP4's.
    """
    target = jax.eval_shape(functools.partial(_init_target, spec.target))
    drafters = {
        name: jax.eval_shape(functools.partial(_init_drafter, config))
        for name, config in spec.drafters
    }
    params = _as_structs(Params(target, drafters, spec), dtype)
    if quantize == INT4:
        return params.replace(target=_in_four_bits(params.target))
    if quantize is None:
        return params
    return jax.eval_shape(functools.partial(quantize_params, kind=quantize), params)


def _in_four_bits(target: dict[str, Any]) -> dict[str, Any]:
    """Return the shapes of a target's variables with its layers' projections in four bits."""
    leaves, scales = flatten_dict(target["params"]), {}
    for path, leaf in leaves.items():
        if contracted_axis(path, tied=False) is None or path == ("lm_head",):
            continue
        *experts, inputs, outputs = leaf.shape
        group, kinds = (_MXFP4_GROUP, 1) if experts else (math.gcd(inputs, _AWQ_GROUP), 2)
        leaves[path] = jax.ShapeDtypeStruct((*experts, inputs // 2, outputs), jnp.uint8)
        shape = (*experts, kinds, inputs // group, outputs)
        scales[path] = jax.ShapeDtypeStruct(shape, jnp.float16)
    return {"params": unflatten_dict(leaves), FOUR_BITS: unflatten_dict(scales)}


def _as_structs(tree: Any, dtype: Any) -> Any:
    """Turn leaves into shapes, floats into `dtype`."""

    def struct(leaf):
        whole = jnp.issubdtype(leaf.dtype, jnp.integer)
        return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype if whole else dtype)

    return jax.tree.map(struct, tree)


def _init_drafter(config: Any) -> dict[str, Any]:
    """Make the variables of a drafter: zeros, except for those of networks with a Flax `init`."""
    listed = {
        EagleConfig: eagle_leaves,
        GriffinConfig: griffin_leaves,
        SpecBlockConfig: specblock_leaves,
    }
    if type(config) not in listed:
        return init_variables(config) if isinstance(config, DSparkConfig) else init_head(config)
    tree: dict[str, Any] = {}
    for leaf in listed[type(config)](config):
        widths = [shape[0] if leaf.transpose else shape[-1] for shape in leaf.shapes]
        rest = (leaf.shapes[0][1],) if leaf.transpose else leaf.shapes[0][:-1]
        place = functools.reduce(lambda at, name: at.setdefault(name, {}), leaf.path[:-1], tree)
        place[leaf.path[-1]] = jnp.zeros((*rest, sum(widths)))
    variables: dict[str, Any] = {"params": tree}
    if config.draft_vocab_size:
        variables["draft"] = {"ids": jnp.arange(config.draft_vocab_size, dtype=jnp.int32)}
    return variables


def random_params(spec: Spec, dtype=jnp.bfloat16, seed: int = 0) -> Params:
    """Draw random `Params` of `spec` on the device, one tensor at a time.

    Norm scales are one and biases zero.
    """
    return _draw(abstract_params(spec, dtype), seed)


def _draw(shapes: Any, seed: int) -> Any:
    def fill(path, leaf):
        name = jax.tree_util.keystr(path)
        if name.endswith("['ids']"):  # the tokens of a reduced vocabulary
            return jnp.arange(leaf.size, dtype=leaf.dtype)
        if name.endswith("['scale']"):
            return jnp.ones(leaf.shape, leaf.dtype)
        if name.endswith("['bias']"):
            return jnp.zeros(leaf.shape, leaf.dtype)
        return _normal(
            jax.random.fold_in(jax.random.key(seed), zlib.crc32(name.encode())),
            leaf.shape,
            leaf.dtype,
        )

    return jax.tree_util.tree_map_with_path(fill, shapes)


def add_random_drafter(params: Params, config: Any) -> Params:
    """Add a drafter with random weights after the others, under its method's name.

    Args:
      params: from `random_params`.
      config: such as `eagle_config` and `dspark_config` return for `params.spec`.
    """
    name = record_of(config).name
    shapes = _as_structs(jax.eval_shape(functools.partial(_init_drafter, config)), params.dtype)
    both = params.with_drafter(name, config, _draw(shapes, 1))
    spec = dataclasses.replace(both.spec, drafters=(*params.spec.drafters, (name, config)))
    return both.replace(spec=spec)


@functools.partial(jax.jit, static_argnums=(1, 2))
def _normal(key, shape, dtype):
    return 0.02 * jax.random.normal(key, shape, dtype)


def _init_target(config):
    row = jnp.zeros((1, 1), jnp.int32)

    def touch(model):
        return model.logits(model(row, row).hidden)

    return Transformer(config).init(jax.random.key(0), method=touch)
