"""Weights of EAGLE-3 drafters, to and from the variables of `EagleDrafter`.

The native layout calls the layer `midlayer`, the speculators schema and vLLM `layers.0`.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.drafters.draft_vocab_weights import check_weights, read_weights, write_weights
from jaxspec.drafters.eagle3 import hf_config
from jaxspec.drafters.eagle3.config import EagleConfig
from jaxspec.drafters.format import Format, json_writer
from jaxspec.drafters.leaves import count_features, list_layer_leaves, make_head_leaf
from jaxspec.io.tensors import RenamedTensors, Tensors
from jaxspec.io.torch_files import open_weights
from jaxspec.io.weight_map import Leaf, linear, vector
from jaxspec.targets.weights import is_rotary_table

_EMBEDDING = "embed_tokens.weight"


def read(directory: str | os.PathLike, config: EagleConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `EagleDrafter(config)`, see `jaxspec.drafters.base`.

    Args:
      directory: holds model.safetensors or pytorch_model.bin, in either layout.
      dtype: dtype of all weights.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, weights hold NaN, or the map of draft tokens is
        wrong.
    """
    found = _open(directory)
    return read_weights(found, leaves(config), _check(found, config), dtype)


def check(directory: str | os.PathLike, config: EagleConfig) -> None:
    """Raise what `read` would, but read no weights."""
    _check(_open(directory), config)


def tensors(variables: Mapping[str, Any], config: EagleConfig) -> dict[str, np.ndarray]:
    """Return tensors by native name, in the variables' dtype.

    `d2t` and `t2d` are among them only if the draft vocabulary is reduced.
    """
    return write_weights(variables, leaves(config), config)


def leaves(config: EagleConfig) -> list[Leaf]:
    """List the leaves of all trained weights."""
    width = config.hidden_size
    return [
        *linear(("fc",), ["fc"], count_features(config), [width], False),
        vector(("token_norm",), "midlayer.input_layernorm", width),
        vector(("feature_norm",), "midlayer.hidden_norm", width),
        *list_layer_leaves(config, (), 2 * width, "midlayer."),
        vector(("norm",), "norm", width),
        make_head_leaf(config),
    ]


def _check(found: Mapping[str, np.ndarray], config: EagleConfig) -> np.ndarray | None:
    """Check the tensors; files may also hold the target's embeddings and the map of a whole
    vocabulary.
    """
    shape = (config.vocab_size, config.target_hidden_size)
    embedding = [Leaf(("embedding",), ((_EMBEDDING,),), (shape,))] if _EMBEDDING in found else []
    wanted = leaves(config) + embedding
    return check_weights(found, wanted, config, ignore=is_rotary_table, whole_map=True)


def _open(directory: str | os.PathLike) -> Tensors:
    """Open the weights of a directory under their native names."""
    found = open_weights(directory)
    if any(name.startswith("midlayer.") for name in found):
        return found
    return RenamedTensors(
        found, {name.replace("layers.0.", "midlayer.", 1): name for name in found}
    )


FORMAT = Format(
    hf_config.matches,
    hf_config.config_from_hf,
    hf_config.for_target,
    read,
    check,
    json_writer(hf_config.config_to_hf, tensors),
    recognise=hf_config.recognise,
    layout=hf_config.layout,
    default_layers=hf_config.default_layers,
    borrowed=hf_config.borrowed,
)
