"""The layout of ParallelSpec and Falcon drafters. This library defines it, since no weights of
these drafters are published.

A directory holds config.json and model.safetensors. `architectures` of the config names the method,
and its `jaxspec` object holds what Llama's fields do not. The weights are linear weights [out, in],
and `d2t` and `t2d` of a reduced draft vocabulary (see `jaxspec.io.weights.draft_vocab`).
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxspec.core.config import FeatureDrafterConfig
from jaxspec.drafters.draft_vocab_weights import (
    check_weights,
    open_drafter,
    pad_vocabulary,
    read_weights,
    write_weights,
)
from jaxspec.drafters.format import About, Format, json_writer, named
from jaxspec.drafters.hf_fields import check_fits, own_fields, read_target_sizes, sizes_to_hf
from jaxspec.drafters.leaves import count_features, make_head_leaf
from jaxspec.io.weights.weight_map import Leaf, linear, vector
from jaxspec.targets.families.hf_fields import integer, transformer_fields


def make_own_format(
    architecture: str,
    config_class: type,
    sizes: tuple[str, ...],
    leaves: Callable[[Any], list[Leaf]],
) -> Format:
    """Make the format of a drafter in this layout.

    Args:
      architecture: its name in config.json.
      config_class: a `FeatureDrafterConfig` with `qk_norm` and the fields `sizes`.
      sizes: names of the integer fields that the `jaxspec` object holds.
      leaves: config -> table of all trained weights.

    The format's `read` raises FileNotFoundError if there are no weights, WeightMismatch, which
    lists all tensors that are missing, unexpected, misshapen or no floats, and ValueError if files
    are unsafe or damaged, weights hold NaN or the map of draft tokens is wrong.
    """

    def from_hf(hf: dict[str, Any]) -> Any:
        return _config_from_hf(hf, config_class, sizes)

    def to_hf(config: Any, about: About, dtype: str) -> dict[str, Any]:
        own = {name: getattr(config, name) for name in (*sizes, "qk_norm")}
        return {
            "architectures": [architecture],
            "model_type": "jaxspec",
            **sizes_to_hf(config, about.max_positions, dtype),
            "jaxspec": own_fields(config, about.num_layers, about.provenance) | own,
        }

    def read(directory: str | os.PathLike, config: Any, dtype: str) -> dict[str, Any]:
        found, table = open_drafter(directory, config), leaves(config)
        return read_weights(found, table, check_weights(found, table, config), dtype)

    def check(directory: str | os.PathLike, config: Any) -> None:
        check_weights(open_drafter(directory, config), leaves(config), config)

    def tensors(variables: Mapping[str, Any], config: Any) -> dict[str, np.ndarray]:
        return write_weights(variables, leaves(config), config)

    write = json_writer(to_hf, tensors)
    fit = functools.partial(check_fits, final_norm=True)
    return Format(named(architecture), from_hf, fit, read, check, write, pad=pad_vocabulary)


def list_end_leaves(config: FeatureDrafterConfig) -> list[Leaf]:
    """List the leaves around a drafter's layer: fusion, input norms, final norm and output
    projection.
    """
    width = config.hidden_size
    return [
        *linear(("fc",), ["fc"], count_features(config), [width], False),
        *(vector((name,), name, width) for name in ("token_norm", "feature_norm", "norm")),
        make_head_leaf(config),
    ]


def _config_from_hf(hf: dict[str, Any], config_class: type, sizes: tuple[str, ...]) -> Any:
    own, fields = hf.get("jaxspec") or {}, transformer_fields(hf)
    layers = own.get("feature_layers")
    if (
        not isinstance(layers, list)
        or not layers
        or not all(type(layer) is int and layer >= 0 for layer in layers)
    ):
        raise ValueError(
            f"config.json: jaxspec.feature_layers must be a list of target layers, not {layers!r}"
        )
    return config_class(
        **fields,
        **{name: integer(own, name) for name in sizes},
        qk_norm=bool(own.get("qk_norm", False)),
        feature_layers=tuple(layers),
        **read_target_sizes(hf),
    )
