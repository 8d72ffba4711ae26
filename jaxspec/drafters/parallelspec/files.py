"""ParallelSpec drafters in this library's own layout (see `own_layout`), to and from config and
variables.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.drafters import own_layout
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.own_layout import for_target
from jaxspec.drafters.parallelspec.config import ParallelSpecConfig
from jaxspec.io.weight_map import Leaf

ARCHITECTURE = "ParallelSpecDrafter"
_SIZES = ("slots",)


def matches(hf: Mapping[str, Any]) -> bool:
    """Whether a config.json describes a ParallelSpec drafter."""
    return (hf.get("architectures") or [None])[0] == ARCHITECTURE


def config_from_hf(hf: dict[str, Any]) -> ParallelSpecConfig:
    """The `ParallelSpecConfig` of a config.json that `matches`; ValueError names a missing or
    unsupported field.
    """
    return own_layout.config_from_hf(hf, ParallelSpecConfig, _SIZES)


def config_to_hf(config: ParallelSpecConfig, about: About, dtype: str) -> dict[str, Any]:
    """Inverse of `config_from_hf`; `about` is the target, `dtype` that of the weights."""
    return own_layout.config_to_hf(config, ARCHITECTURE, _SIZES, about, dtype)


def read(directory: str | os.PathLike, config: ParallelSpecConfig, dtype: str) -> dict[str, Any]:
    """Variables of `ParallelSpec(config)`; errors as of `own_layout.read`."""
    return own_layout.read(directory, config, leaves(config), dtype)


def check(directory: str | os.PathLike, config: ParallelSpecConfig) -> None:
    """Raise what `read` would, short of reading weights."""
    own_layout.check(directory, config, leaves(config))


def tensors(variables: Mapping[str, Any], config: ParallelSpecConfig) -> dict[str, np.ndarray]:
    """Tensors by name, in the variables' dtype; `d2t` and `t2d` only with a reduced vocabulary."""
    return own_layout.tensors(variables, config, leaves(config))


def leaves(config: ParallelSpecConfig) -> list[Leaf]:
    """The table of all trained weights."""
    masks = ((config.slots - 1, config.hidden_size),)
    return [
        *own_layout.ends_leaves(config),
        *own_layout.layer_leaves(config, (), 2 * config.hidden_size),
        Leaf(("mask_token",), (("mask_token",),), masks),
        Leaf(("mask_feature",), (("mask_feature",),), masks),
    ]


FORMAT = Format(
    matches, config_from_hf, for_target, read, check, json_writer(config_to_hf, tensors)
)
