"""Weights of SpecBlock drafters in the authors' layout, to and from the variables of `SpecBlock`.

The map of a reduced vocabulary is among the weights, or in a file `vocab_mapping.pt`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
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
from jaxspec.drafters.format import Format, json_writer
from jaxspec.drafters.leaves import count_features, make_head_leaf
from jaxspec.drafters.specblock import hf_config
from jaxspec.drafters.specblock.network import RANK_FEATURES, SpecBlockConfig
from jaxspec.io.files.tensors import RowReader, Tensors
from jaxspec.io.files.torch_files import TorchFile
from jaxspec.io.weights.draft_vocab import MAPPING
from jaxspec.io.weights.weight_map import Leaf, linear, vector, write_tree
from jaxspec.targets.weights import decoder_layer_leaves, is_rotary_table

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
    hf_config.matches,
    hf_config.config_from_hf,
    hf_config.for_target,
    read,
    check,
    json_writer(hf_config.config_to_hf, tensors),
    recognise=hf_config.recognise,
    default_layers=hf_config.default_layers,
    pad=pad_vocabulary,
    side_files=(_MAPPING_FILE,),
)
