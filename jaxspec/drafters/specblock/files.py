"""The files of SpecBlock drafters in the authors' layout, to and from the variables of `SpecBlock`.

config.json has no fields for the feature layers, for the number of blocks on a path, for q/k norm
and another width of heads, and for the ablations; the `jaxspec` object holds them. The map of a
reduced vocabulary is among the weights, or in a file `vocab_mapping.pt`.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.drafters.draft_vocab_weights import (
    check_weights,
    open_drafter,
    pad_vocabulary,
    read_weights,
    write_map,
)
from jaxspec.drafters.eagle3 import hf_config as eagle
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.hf_fields import (
    Layers,
    own_fields,
    own_layers,
    read_target_sizes,
    sizes_to_hf,
)
from jaxspec.drafters.leaves import count_features, make_head_leaf
from jaxspec.drafters.specblock.network import RANK_FEATURES, SpecBlockConfig
from jaxspec.io.files.tensors import RowReader, Tensors
from jaxspec.io.files.torch_files import TorchFile
from jaxspec.io.weights.draft_vocab import MAPPING
from jaxspec.io.weights.weight_map import Leaf, linear, vector, write_tree
from jaxspec.targets.families.hf_fields import integer, transformer_fields
from jaxspec.targets.layer_leaves import decoder_layer_leaves
from jaxspec.targets.weights import is_rotary_table

ARCHITECTURE = "LlamaForCausalLMSpecBlock"
_NAMES = (ARCHITECTURE, "LlamaForCausalLMSpecBlockShift")
_FLAGS = ("prefix_broadcast", "shift", "qk_norm")

# If a file states no feature layers, they are EAGLE-3's.
for_target = eagle.for_target


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json describes a SpecBlock drafter."""
    return (hf.get("architectures") or [None])[0] in _NAMES


def config_from_hf(hf: dict[str, Any]) -> SpecBlockConfig:
    """Read the `SpecBlockConfig` of a config.json that `matches`.

    `feature_layers` is empty if the file does not state them; `for_target` fills them in.
    `head_dim` is the width divided by the heads, whatever the file says, as in the authors' code,
    unless the `jaxspec` object has another. `num_ttt_blocks` counts blocks in training and is not
    read.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
    own = hf.get("jaxspec") or {}
    hidden, heads = integer(hf, "hidden_size"), integer(hf, "num_attention_heads")
    if hidden % heads and "head_dim" not in own:
        raise ValueError(
            f"config.json: hidden_size {hidden} is not a multiple of num_attention_heads {heads}"
        )
    flags = {name: own.get(name, name != "qk_norm") for name in _FLAGS}
    wrong = next((name for name, value in flags.items() if not isinstance(value, bool)), None)
    if wrong:
        raise ValueError(
            f"config.json: jaxspec.{wrong} must be true or false, not {flags[wrong]!r}"
        )
    return SpecBlockConfig(
        **transformer_fields(hf | {"head_dim": integer(own, "head_dim", hidden // heads)}),
        **flags,
        slots=integer(hf, "diffspec_draft_token_num", 7),
        blocks=integer(own, "blocks", SpecBlockConfig.blocks),
        rank_classes=integer(hf, "rank_classes", SpecBlockConfig.rank_classes),
        rank_hidden=integer(own, "rank_hidden", SpecBlockConfig.rank_hidden),
        rank_top=own.get("rank_top", SpecBlockConfig.rank_top),
        feature_layers=_read_feature_layers(own),
        **read_target_sizes(hf),
    )


def config_to_hf(config: SpecBlockConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json in the authors' layout.

    Heads that do not divide the width have their own in the `jaxspec` object; the authors' code
    cannot read such a drafter, nor one with q/k norm.

    Args:
      about: the target.
      dtype: dtype of the weights.
    """
    sizes = ["blocks", "rank_hidden", "rank_top", *_FLAGS]
    if config.head_dim * config.num_heads != config.hidden_size:
        sizes.append("head_dim")
    return {
        "architectures": [ARCHITECTURE],
        "model_type": "llama",
        **sizes_to_hf(config, about.max_positions, dtype),
        "diffspec_draft_token_num": config.slots,
        "rank_classes": config.rank_classes,
        "jaxspec": own_fields(config, about.num_layers, about.provenance)
        | {name: getattr(config, name) for name in sizes},
    }


def recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    """Say whether a config.json looks like a SpecBlock drafter's."""
    architecture = str((hf.get("architectures") or [""])[0])
    return "SpecBlock" in architecture or "diffspec_draft_token_num" in hf or "rank_classes" in hf


def default_layers(hf: dict[str, Any]) -> Layers:
    """Return the layers that the `jaxspec` object states, or else those that EAGLE-3 assumes."""
    return own_layers(hf) or eagle.default_layers(hf)


def _read_feature_layers(own: Mapping[str, Any]) -> tuple[int, ...]:
    layers = own.get("feature_layers", [])
    if not isinstance(layers, list) or not all(type(i) is int and i >= 0 for i in layers):
        raise ValueError(
            "config.json: jaxspec.feature_layers must be target layers, 0 or higher, "
            f"not {layers!r}"
        )
    return tuple(layers)


_MAPPING_FILE = "vocab_mapping.pt"


def read(directory: str | os.PathLike, config: SpecBlockConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `SpecBlock(config)`, see `jaxspec.drafters.base`.

    Args:
      directory: holds model.safetensors or pytorch_model.bin, and vocab_mapping.pt if the map is
        not among the weights.
      dtype: dtype of all weights.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, weights hold NaN, or the map of draft tokens is
        wrong.
    """
    found = _open(Path(directory), config)
    return read_weights(found, leaves(config), _check(found, config), dtype)


def check(directory: str | os.PathLike, config: SpecBlockConfig) -> None:
    """Raise what `read` would, but read no weights."""
    _check(_open(Path(directory), config), config)


def tensors(variables: Mapping[str, Any], config: SpecBlockConfig) -> dict[str, np.ndarray]:
    """Return tensors by the authors' names, in the variables' dtype.

    `d2t` and `t2d` are always among them, since the authors' code always reads them.
    """
    written = write_tree(leaves(config), variables)
    return written | write_map(variables, config, whole_map=True)


def leaves(config: SpecBlockConfig) -> list[Leaf]:
    """List the leaves of all trained weights."""
    width, features = config.hidden_size, count_features(config)
    table = [
        *linear(("condition_proj",), ["input_layer.condition_proj"], features, [width], False),
        *(
            vector((f"{x}_norm",), f"input_layer.{x}_norm", width)
            for x in ("condition", "token", "query")
        ),
        Leaf(("queries",), (("input_layer.position_queries.weight",),), ((config.slots, width),)),
        Leaf(("fuse",), (("input_layer.fuse.weight",),), ((width, 3 * width),), transpose=True),
        vector(("norm",), "norm", width),
        make_head_leaf(config),
        *linear(
            ("rank_inner",), ["rank_head.0"], width + RANK_FEATURES, [config.rank_hidden], False
        ),
        *linear(("rank_outer",), ["rank_head.2"], config.rank_hidden, [config.rank_classes], False),
    ]
    for i in range(config.num_layers):
        table += decoder_layer_leaves(config, i, "")
    for i in range(config.num_layers - 1 if config.shift else 0):
        table += linear((f"shifts_{i}",), [f"shift_proj.{i}"], 2 * width, [width], False)
    return table


class _WithMapping(Tensors):
    """A view of weights and of the tensors of `vocab_mapping.pt` together."""

    def __init__(self, weights: Tensors, mapping: Tensors):
        self._home = {name: weights for name in weights} | {
            name: mapping for name in MAPPING if name in mapping
        }

    def __getitem__(self, name: str) -> np.ndarray:
        return self._home[name][name]

    def shape(self, name: str) -> tuple[int, ...]:
        return self._home[name].shape(name)

    def dtype(self, name: str) -> str:
        return self._home[name].dtype(name)

    def row_reader(self, name: str) -> RowReader:
        return self._home[name].row_reader(name)


def _open(directory: Path, config: SpecBlockConfig) -> Tensors:
    weights, mapping = open_drafter(directory, config), directory / _MAPPING_FILE
    if any(name in weights for name in MAPPING) or not mapping.is_file():
        return weights
    return _WithMapping(weights, TorchFile(mapping))


def _check(found: Mapping[str, np.ndarray], config: SpecBlockConfig) -> np.ndarray | None:
    """Check the tensors; files may also hold the map of a whole vocabulary."""
    return check_weights(found, leaves(config), config, ignore=is_rotary_table, whole_map=True)


FORMAT = Format(
    matches,
    config_from_hf,
    for_target,
    read,
    check,
    json_writer(config_to_hf, tensors),
    recognise=recognise,
    default_layers=default_layers,
    pad=pad_vocabulary,
    side_files=(_MAPPING_FILE,),
)
