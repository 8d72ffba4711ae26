"""Read and write ParallelSpec drafters in this library's own layout (see `own_layout`)."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.drafters import own_layout
from jaxspec.drafters.draft_vocab_weights import write_weights
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.leaves import list_layer_leaves
from jaxspec.drafters.own_layout import for_target
from jaxspec.drafters.parallelspec.config import ParallelSpecConfig
from jaxspec.io.weight_map import Leaf

ARCHITECTURE = "ParallelSpecDrafter"
_SIZES = ("slots",)


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json describes a ParallelSpec drafter."""
    return (hf.get("architectures") or [None])[0] == ARCHITECTURE


def config_from_hf(hf: dict[str, Any]) -> ParallelSpecConfig:
    """Read the `ParallelSpecConfig` of a config.json that `matches`.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
    return own_layout.config_from_hf(hf, ParallelSpecConfig, _SIZES)


def config_to_hf(config: ParallelSpecConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make the config.json that `config_from_hf` reads.

    Args:
      about: the target.
      dtype: dtype of the weights.
    """
    return own_layout.config_to_hf(config, ARCHITECTURE, _SIZES, about, dtype)


def read(directory: str | os.PathLike, config: ParallelSpecConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `ParallelSpec(config)`; errors are those of `own_layout.read`."""
    return own_layout.read(directory, config, leaves(config), dtype)


def check(directory: str | os.PathLike, config: ParallelSpecConfig) -> None:
    """Raise what `read` would, but read no weights."""
    own_layout.check(directory, config, leaves(config))


def tensors(variables: Mapping[str, Any], config: ParallelSpecConfig) -> dict[str, np.ndarray]:
    """Return tensors by name, in the variables' dtype.

    `d2t` and `t2d` are among them only if the draft vocabulary is reduced.
    """
    return write_weights(variables, leaves(config), config)


def leaves(config: ParallelSpecConfig) -> list[Leaf]:
    """List the leaves of all trained weights."""
    masks = ((config.slots - 1, config.hidden_size),)
    return [
        *own_layout.ends_leaves(config),
        *list_layer_leaves(config, (), 2 * config.hidden_size),
        Leaf(("mask_token",), (("mask_token",),), masks),
        Leaf(("mask_feature",), (("mask_feature",),), masks),
    ]


FORMAT = Format(
    matches, config_from_hf, for_target, read, check, json_writer(config_to_hf, tensors)
)
