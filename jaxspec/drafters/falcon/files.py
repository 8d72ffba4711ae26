"""Read and write Falcon drafters in this library's own layout (see `own_layout`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.drafters import own_layout
from jaxspec.drafters.draft_vocab_weights import write_weights
from jaxspec.drafters.falcon.config import FalconConfig
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.leaves import list_layer_leaves
from jaxspec.drafters.own_layout import for_target
from jaxspec.io.weight_map import Leaf, linear, vector

ARCHITECTURE = "FalconDrafter"
_SIZES = ("slots", "blocks", "lstm_size", "lstm_layers")


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json describes a Falcon drafter."""
    return (hf.get("architectures") or [None])[0] == ARCHITECTURE


def config_from_hf(hf: dict[str, Any]) -> FalconConfig:
    """Read the `FalconConfig` of a config.json that `matches`.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
    return own_layout.config_from_hf(hf, FalconConfig, _SIZES)


def config_to_hf(config: FalconConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make the config.json that `config_from_hf` reads.

    Args:
      about: the target.
      dtype: dtype of the weights.
    """
    return own_layout.config_to_hf(config, ARCHITECTURE, _SIZES, about, dtype)


def read(directory: str | os.PathLike, config: FalconConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `Falcon(config)`; errors are those of `own_layout.read`."""
    return own_layout.read(directory, config, leaves(config), dtype)


def check(directory: str | os.PathLike, config: FalconConfig) -> None:
    """Raise what `read` would, but read no weights."""
    own_layout.check(directory, config, leaves(config))


def tensors(variables: Mapping[str, Any], config: FalconConfig) -> dict[str, np.ndarray]:
    """Return tensors by name, in the variables' dtype.

    `d2t` and `t2d` are among them only if the draft vocabulary is reduced.
    """
    return write_weights(variables, leaves(config), config)


def leaves(config: FalconConfig) -> list[Leaf]:
    """List the leaves of all trained weights; the LSTM's gates are in PyTorch's order."""
    width, size = config.hidden_size, config.lstm_size
    table = [
        *own_layout.ends_leaves(config),
        vector(("layer", "attention_norm"), "input_layernorm", width),
        *list_layer_leaves(config, ("layer",), width),
        *linear(("mix",), ["mix"], size, [width], False),
    ]
    for i in range(config.lstm_layers):
        path, inputs = ("lstm", f"layer_{i}"), size if i else 2 * width
        table += [
            Leaf(
                (*path, "kernel"),
                ((f"lstm.weight_ih_l{i}",),),
                ((4 * size, inputs),),
                transpose=True,
            ),
            Leaf(
                (*path, "recurrent"),
                ((f"lstm.weight_hh_l{i}",),),
                ((4 * size, size),),
                transpose=True,
            ),
            Leaf((*path, "bias"), ((f"lstm.bias_l{i}",),), ((4 * size,),)),
        ]
    return table


FORMAT = Format(
    matches, config_from_hf, for_target, read, check, json_writer(config_to_hf, tensors)
)
