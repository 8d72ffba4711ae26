"""The files of GRIFFIN drafters in the authors' layout, to and from `GriffinDrafter`.

Published files call themselves a `LlamaForCausalLM` of one layer, as a small language model could,
so the names of their tensors decide. They hold a copy of the target's embeddings, which is not
read. Those of Qwen2 may have biases of q, k and v, which their config.json does not tell.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Collection, Mapping
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.draft_vocab_weights import open_drafter, pad_tables
from jaxspec.drafters.format import About, Format, json_writer, tensor_writer
from jaxspec.drafters.griffin.network import GriffinConfig
from jaxspec.drafters.hf_fields import Layers, check_fits, own_fields, sizes_to_hf
from jaxspec.drafters.hf_fields import score_temperature as read_score_temperature
from jaxspec.drafters.leaves import list_layer_leaves
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import (
    Leaf,
    check_fit,
    linear,
    read_stored,
    vector,
    write_tree,
)
from jaxspec.targets.families.hf_fields import integer, transformer_fields
from jaxspec.targets.weights import EMBEDDING, is_rotary_table

ARCHITECTURE = "LlamaForCausalLMGriffin"
_EMBEDDING = "embed_tokens.weight"
# Only GRIFFIN's fusion has this norm.
_MARK = "fc.mlp.input_layernorm.weight"
_ATTENTION = "layers.0.self_attn"


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json was written here for a GRIFFIN drafter."""
    return (hf.get("architectures") or [None])[0] == ARCHITECTURE


def identify(hf: dict[str, Any], list_names: Callable[[], Collection[str]]) -> GriffinConfig | None:
    """Read the config of published files, see `Format.identify`."""
    named = str((hf.get("architectures") or [""])[0])
    if hf.get("num_hidden_layers") != 1 or not (not named or named.endswith("ForCausalLM")):
        return None
    names = list_names()
    if not any(name.endswith(_MARK) for name in names):
        return None
    biased = any(name.endswith(f"{_ATTENTION}.q_proj.bias") for name in names)
    return config_from_hf(hf | {"attention_bias": biased})


def config_from_hf(hf: dict[str, Any]) -> GriffinConfig:
    """Read the `GriffinConfig` of a config.json.

    `feature_layers` is empty if the file does not state them; `for_target` fills them in.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
    fields, own, vocab = transformer_fields(hf), hf.get("jaxspec") or {}, integer(hf, "vocab_size")
    if fields["num_layers"] != 1:
        raise ValueError(
            f"config.json: num_hidden_layers is {fields['num_layers']}, and a GRIFFIN drafter has "
            "1 layer"
        )
    if integer(hf, "draft_vocab_size", vocab) != vocab:
        raise ValueError(
            "config.json: draft_vocab_size is not supported: a GRIFFIN drafter proposes all of the "
            "target's tokens"
        )
    return GriffinConfig(
        **fields,
        qk_norm=False,
        feature_layers=tuple(own.get("feature_layers") or ()),
        target_hidden_size=fields["hidden_size"],
        vocab_size=vocab,
        depth=integer(own, "depth", GriffinConfig.depth),
        score_temperature=read_score_temperature(hf),
    )


def config_to_hf(config: GriffinConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json that `config_from_hf` and the authors' code read."""
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **sizes_to_hf(config, about.max_positions, dtype),
        "jaxspec": own_fields(config, about.num_layers, about.provenance) | {"depth": config.depth},
    }


def for_target(config: GriffinConfig, target: TargetConfig) -> GriffinConfig:
    """Return `config` with the target's final norm as its feature layer.

    Raises:
      ValueError: the drafter does not fit the target.
    """
    if config.feature_layers not in ((), (target.num_layers,)):
        raise ValueError(
            f"the drafter does not fit the target: it reads target layers {config.feature_layers}, "
            f"and GRIFFIN the final norm, {target.num_layers}; use a drafter trained for this "
            "target"
        )
    fitted = dataclasses.replace(config, feature_layers=(target.num_layers,))
    return check_fits(fitted, target, final_norm=True)


def leaves(config: GriffinConfig) -> list[Leaf]:
    """List the leaves of all weights."""
    width, ffn = config.hidden_size, config.ffn_size
    queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
    unbiased = dataclasses.replace(config, qkv_bias=False, o_bias=False)
    table = [
        *linear(("fusion", "fc"), ["fc.fc"], 2 * width, [width], True),
        vector(("fusion", "norm"), "fc.post_attention_layernorm", width),
        vector(("fusion", "input_norm"), "fc.mlp.input_layernorm", width),
        *linear(("fusion", "up"), ["fc.mlp.up_proj"], 2 * width, [ffn], False),
        *linear(("fusion", "down"), ["fc.mlp.down_proj"], ffn, [width], False),
        *list_layer_leaves(unbiased, (), width, "layers.0.", outputs=2 * width),
    ]
    for name, size in (("q", queries), ("kv", keys)) if config.qkv_bias else ():
        biases = tuple(f"{_ATTENTION}.{part}_proj.bias" for part in name)
        table.append(Leaf(("attention", name, "bias"), (biases,), ((size,),) * len(name)))
    return table


def read(directory: str | os.PathLike, config: GriffinConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `GriffinDrafter(config)`, see `jaxspec.drafters.base`.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, or weights hold NaN.
    """
    return read_tree(leaves(config), open_drafter(directory, config), dtype, _is_unread)


def check(directory: str | os.PathLike, config: GriffinConfig) -> None:
    """Raise what `read` would, but read no weights."""
    check_fit(leaves(config), open_drafter(directory, config), _is_unread)


def tensors(variables: Mapping[str, Any], config: GriffinConfig) -> dict[str, np.ndarray]:
    """Return tensors by the authors' names, in the variables' dtype, without the embeddings."""
    return write_tree(leaves(config), variables)


def stored_tensors(
    directory: str | os.PathLike, config: GriffinConfig, borrowed: Mapping[str, np.ndarray]
) -> dict[str, np.ndarray]:
    """Read the drafter's tensors in their stored dtypes; see `Format.stored`."""
    return read_stored(leaves(config), open_drafter(directory, config), _is_unread)


def _is_unread(name: str) -> bool:
    return name == _EMBEDDING or is_rotary_table(name)


def _recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    return matches(hf) or any(name.endswith(_MARK) for name in names)


def _default_layers(hf: dict[str, Any]) -> Layers:
    return Layers(None, "none: it reads the target's last hidden state, after the final norm", "")


FORMAT = Format(
    matches,
    config_from_hf,
    for_target,
    read,
    check,
    json_writer(config_to_hf, tensors),
    identify=identify,
    recognise=_recognise,
    default_layers=_default_layers,
    pad=pad_tables,
    stored=stored_tensors,
    writers={"griffin": tensor_writer(config_to_hf, lambda config: {_EMBEDDING: EMBEDDING})},
)
