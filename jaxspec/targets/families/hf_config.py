"""Convert config.json of target models to and from `TargetConfig`."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from jaxspec.core.config import TargetConfig, layer_of
from jaxspec.io.quantised.registry import find_format
from jaxspec.targets.families.hf_fields import (
    find_text_config,
    integer,
    transformer_fields,
    transformer_fields_to_hf,
)
from jaxspec.targets.families.registry import family_of, family_of_hf


def target_config(hf: dict[str, Any]) -> TargetConfig:
    """Read the `TargetConfig` of a config.json, as written by transformers 4 or 5.

    Raises:
      ValueError: the architecture is unknown, a field is missing, or a setting changes the
        computation and is not supported.
    """
    family = family_of_hf(hf)
    hf = _complete(find_text_config(hf), family.defaults)
    _refuse_unsupported(hf)
    fields = transformer_fields(hf, default_head_dim=family.head_dim)
    fields |= {
        "qk_norm": family.qk_norm,
        "family": family.name,
        "vocab_size": integer(hf, "vocab_size"),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", False)),
        "max_positions": integer(hf, "max_position_embeddings"),
    }
    config = TargetConfig(**fields | family.read(hf))
    base, changes = layer_of(config), family.read_layers(hf)
    layers = tuple(dataclasses.replace(base, **change) for change in changes)
    alike = all(layer == base for layer in layers)
    return config if alike else dataclasses.replace(config, layers=layers)


def target_config_to_hf(config: TargetConfig, dtype: str = "float32") -> dict[str, Any]:
    """Write a config.json that transformers 4 and 5 both read as `config`.

    Args:
      config: the target's config.
      dtype: dtype of the weights.
    """
    family = family_of(config)
    return {
        "architectures": [family.architecture],
        "model_type": family.name,
        **transformer_fields_to_hf(config, dtype),
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": config.tie_embeddings,
        "max_position_embeddings": config.max_positions,
        **family.write(config),
    }


def _complete(hf: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Add the entries that a file leaves out; RoPE counts as stated in either spelling."""
    stated = {name: value for name, value in hf.items() if value is not None}
    found = {**defaults, **stated}
    if "rope_scaling" in stated and "rope_parameters" not in stated:
        found.pop("rope_parameters", None)
    return found


def _refuse_unsupported(hf: dict[str, Any]) -> None:
    """Refuse settings that change the computation and are not supported."""
    find_format(hf)
    if hf.get("mlp_bias"):
        raise ValueError("config.json: mlp_bias is not supported")
