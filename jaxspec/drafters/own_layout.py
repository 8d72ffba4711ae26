"""The layout of ParallelSpec and Falcon drafters. This library defines it, since no weights of
these drafters are published.

A directory holds config.json and model.safetensors. `architectures` of the config names the method,
and its `jaxspec` object holds what Llama's fields do not. The weights are linear weights [out, in],
and `d2t` and `t2d` of a reduced draft vocabulary (see `jaxspec.io.draft_vocab`).
"""

from __future__ import annotations

import os
from typing import Any

from jaxspec.core.config import FeatureDrafterConfig, TargetConfig
from jaxspec.drafters.draft_vocab_weights import check_weights, read_weights
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import check_fits, own_fields, read_target_sizes, sizes_to_hf
from jaxspec.drafters.leaves import count_features, make_head_leaf
from jaxspec.io.torch_files import open_weights
from jaxspec.io.weight_map import Leaf, linear, vector
from jaxspec.targets.hf_fields import integer, transformer_fields


def config_from_hf(hf: dict[str, Any], config_class: type, sizes: tuple[str, ...]) -> Any:
    """Read a config of class `config_class` from config.json.

    Args:
      sizes: names of its integer fields that the `jaxspec` object holds.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
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


def config_to_hf(
    config: Any, architecture: str, sizes: tuple[str, ...], about: About, dtype: str
) -> dict[str, Any]:
    """Make the config.json that `config_from_hf` reads; `dtype` is that of the weights."""
    own = {name: getattr(config, name) for name in (*sizes, "qk_norm")}
    return {
        "architectures": [architecture],
        "model_type": "jaxspec",
        **sizes_to_hf(config, about.max_positions, dtype),
        "jaxspec": own_fields(config, about.num_layers, about.provenance) | own,
    }


def for_target(config: Any, target: TargetConfig) -> Any:
    """Return `config`; raise a ValueError if it does not fit the target."""
    check_fits(config, target, final_norm=True)
    return config


def read(
    directory: str | os.PathLike, config: FeatureDrafterConfig, leaves: list[Leaf], dtype: str
) -> dict[str, Any]:
    """Read a drafter's variables, see `jaxspec.drafters.base`.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, weights hold NaN, or the map of draft tokens is
        wrong.
    """
    found = open_weights(directory)
    return read_weights(found, leaves, check_weights(found, leaves, config), dtype)


def check(directory: str | os.PathLike, config: FeatureDrafterConfig, leaves: list[Leaf]) -> None:
    """Raise what `read` would, but read no weights."""
    check_weights(open_weights(directory), leaves, config)


def ends_leaves(config: FeatureDrafterConfig) -> list[Leaf]:
    """List the leaves around a drafter's layer: fusion, input norms, final norm and output
    projection.
    """
    width = config.hidden_size
    return [
        *linear(("fc",), ["fc"], count_features(config), [width], False),
        *(vector((name,), name, width) for name in ("token_norm", "feature_norm", "norm")),
        make_head_leaf(config),
    ]
