"""Convert a target's weights between Hugging Face tensors and `Transformer`'s parameters."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np
from flax.traverse_util import flatten_dict, unflatten_dict

from jaxspec.core.config import TargetConfig
from jaxspec.io.quantised.tensors import QuantisedTensors
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import Leaf, check_fit, linear, vector, write_tree
from jaxspec.targets.families.registry import family_of
from jaxspec.targets.layer_leaves import (
    list_attention,
    list_delta_net,
    list_ends,
    list_experts,
    list_mlp,
    list_norms,
)
from jaxspec.targets.layouts import quant
from jaxspec.targets.layouts.held import plan_reading, shape_groups

EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"
_LAYER = re.compile(r"model\.layers\.(\d+)\.")
_PER_LAYER = tuple(
    f"model.{name}"
    for name in (
        "embed_tokens_per_layer",
        "per_layer_model_projection",
        "per_layer_projection_norm",
    )
)
_ROTARY = ("inv_freq", "original_inv_freq", "cos_cached", "sin_cached")


def from_hf(
    read: Mapping[str, np.ndarray],
    config: TargetConfig,
    dtype: str = "float32",
    quantize: str | None = None,
) -> dict[str, Any]:
    """Read variables {"params": ...} of `Transformer(config)` from tensors by Hugging Face name.

    Args:
      read: `WeightFiles` of a directory, or a dict.
      config: the config that the tensors must fit.
      dtype: `float32`, `float16` or `bfloat16`, the dtype of every parameter that is not quantised.
      quantize: `int8` or `fp8`. Tensors are quantised one by one, so the device never holds more
        than one of them unquantised. The variables are those of `jaxspec.targets.layouts.quant`.
        By default weights that are stored so stay so; `none` makes them floats. `int4` also keeps
        those that are stored in four bits.

    Raises:
      WeightMismatch: tensors are missing, unexpected or misshapen; reports all of them.
      ValueError: a tensor holds NaN or infinity, or overflows `dtype`.
    """
    tied, scales = config.tie_embeddings, {}
    plan = plan_reading(target_leaves(config), read, dtype, quantize, tied)

    def place(leaf: Leaf, array: jax.Array) -> jax.Array:
        axis = quant.contracted_axis(leaf.path, tied) if plan.quantize and not leaf.dtype else None
        if axis is None:
            return shape_groups(leaf, array)
        values, scales[leaf.path] = jax.block_until_ready(
            quant.quantize(array, plan.quantize, axis)
        )
        return values

    leaves = plan.leaves + plan.scales
    params = read_tree(leaves, plan.read, dtype, ignored(config, read), place)["params"]
    groups = {name: params.pop(name) for name in (quant.FOUR_BITS,) if name in params}
    scales |= flatten_dict(params.pop(quant.COLLECTION, {}))
    per_output = {quant.COLLECTION: unflatten_dict(scales)} if scales else {}
    return {"params": params} | per_output | groups


def ignored(config: TargetConfig, read: Mapping[str, np.ndarray]) -> Callable[[str], bool]:
    """Return a function that says whether files may hold a tensor that nothing reads.

    Layers that read another one's keys and values have projections of their own in some files.
    """
    sharing = tuple(
        f"model.layers.{i}.self_attn.{name}"
        for i, layer in enumerate(config.list_layers())
        if layer.kv_source is not None
        for name in ("k_proj.", "v_proj.", "k_norm.", "v_norm.")
    )
    family = family_of(config)
    head = family.weight_name(HEAD) if config.tie_embeddings else None
    unused = (*sharing, *family.unused)
    is_idle = read.is_idle if isinstance(read, QuantisedTensors) else lambda name: False

    def lies_behind(name: str) -> bool:
        layer = _LAYER.match(name) if family.further_layers else None
        return layer is not None and int(layer[1]) >= config.num_layers

    return lambda name: (
        is_rotary_table(name)
        or name == head
        or name.startswith(unused)
        or lies_behind(name)
        or is_idle(name)
    )


def check(read: Mapping[str, np.ndarray], config: TargetConfig) -> None:
    """Raise what `from_hf` would of names, shapes and dtypes, but read no weights."""
    check_fit(target_leaves(config), read, ignored(config, read))


def to_hf(params: Mapping[str, Any], config: TargetConfig) -> dict[str, np.ndarray]:
    """Write tensors by Hugging Face name, in the parameters' dtype.

    `lm_head.weight` is absent if embeddings are tied.

    Raises:
      ValueError: an array is absent, its shape differs from the config's, or the weights are
        quantised.
    """
    quant.refuse(params, "written: load the model with quantize='none' and save that")
    return write_tree(target_leaves(config), params)


def target_leaves(config: TargetConfig) -> list[Leaf]:
    """List the leaves of all weights of a target, with its family's names of tensors."""
    rename = family_of(config).weight_name
    return [
        leaf._replace(names=tuple(tuple(map(rename, group)) for group in leaf.names))
        for leaf in _leaves(config)
    ]


def tensor(params: Mapping[str, Any], config: TargetConfig, name: str) -> np.ndarray:
    """Return the tensor that Llama's files call `name`, in its dtype.

    With tied embeddings, the output projection is the embedding table.
    """
    name = EMBEDDING if config.tie_embeddings and name == HEAD else name
    found = [leaf for leaf in _leaves(config) if any(name in group for group in leaf.names)]
    return write_tree(found, params)[name]


def stored_name(config: TargetConfig, name: str) -> str:
    """Return the target's own name for the tensor that Llama's files call `name`."""
    name = EMBEDDING if config.tie_embeddings and name == HEAD else name
    return family_of(config).weight_name(name)


def _leaves(config: TargetConfig) -> list[Leaf]:
    """List the leaves with Llama's names of tensors."""
    vocab, width, family = config.vocab_size, config.hidden_size, family_of(config)
    leaves = [Leaf(("embedding",), ((EMBEDDING,),), ((vocab, width),))]
    for i, layer in enumerate(config.list_layers()):
        leaves += list_norms(layer, i)
        if layer.delta is None:
            leaves += list_attention(layer, i, fused=True, joined=family.fused)
        else:
            leaves += list_delta_net(layer, i)
        if layer.moe is None:
            leaves += list_mlp(layer, i, joined=family.fused)
        else:
            leaves += (family.list_sparse or list_experts)(layer, i)
        leaves += list_ends(layer, i)
    if config.per_layer_size:
        inputs = config.num_layers * config.per_layer_size
        table = (f"{_PER_LAYER[0]}.weight",)
        leaves.append(
            Leaf(("per_layer_embedding",), (table,), ((config.per_layer_vocab_size, inputs),))
        )
        path = ("per_layer_projection",)
        leaves += linear(path, [_PER_LAYER[1]], config.hidden_size, [inputs], False)
        leaves.append(vector(("per_layer_norm",), _PER_LAYER[2], config.per_layer_size))
    leaves.append(vector(("norm",), "model.norm", width))
    if not config.tie_embeddings:
        leaves.append(Leaf(("lm_head",), ((HEAD,),), ((vocab, width),), transpose=True))
    return leaves


def is_rotary_table(name: str) -> bool:
    """Whether a tensor holds rotary frequencies, which some writers save and nothing reads."""
    return name.rpartition(".")[2] in _ROTARY
