"""Read a language model's own files as a drafter for a larger model of its family."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.core.recurrent import refuse_recurrent
from jaxspec.drafters.draft_model.drafter import DraftModelConfig
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.hf_fields import own_fields, score_temperature
from jaxspec.io.files.tensors import Tensors
from jaxspec.io.files.torch_files import open_weights
from jaxspec.io.quantised.full_weights import open_full
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.weight_map import check_fit
from jaxspec.targets import weights as target_weights
from jaxspec.targets.families.hf_config import target_config, target_config_to_hf
from jaxspec.targets.families.hf_fields import integer
from jaxspec.targets.families.registry import families, family_of
from jaxspec.targets.gguf_files.layout import is_gguf, read_gguf


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json describes a language model that could be a target itself."""
    return (hf.get("architectures") or [None])[0] in {family.architecture for family in families()}


def config_from_hf(hf: dict[str, Any]) -> DraftModelConfig:
    """Read the model's config as a drafter's; raise a ValueError if it cannot be read."""
    own = hf.get("jaxspec") or {}
    return DraftModelConfig(
        target_config(hf), integer(own, "depth", DraftModelConfig.depth), score_temperature(hf)
    )


def config_to_hf(config: DraftModelConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make the model's config.json, which transformers reads."""
    own = own_fields(config, about.num_layers, about.provenance) | {"depth": config.depth}
    return target_config_to_hf(config.model, dtype) | {"jaxspec": own}


def for_target(config: DraftModelConfig, target: TargetConfig) -> DraftModelConfig:
    """Return `config`; raise a ValueError if its model has another vocabulary than the target, or
    recurrent layers, which cannot draft a tree.
    """
    refuse_recurrent(
        config.model, "be a draft model yet: give one whose layers are all of attention"
    )
    if config.vocab_size != target.vocab_size:
        raise ValueError(
            f"the drafter does not fit the target: its vocabulary has {config.vocab_size} tokens, "
            f"the target's {target.vocab_size}; use a smaller model with the target's tokenizer, "
            "and keep the tokenizer's files beside both"
        )
    return config


def pad(config: DraftModelConfig, rows: int) -> DraftModelConfig:
    """Return `config` for a target with `rows` embedding rows, see `Format.pad`."""
    return dataclasses.replace(config, target_vocab_size=rows)


def read(directory: str | os.PathLike, config: DraftModelConfig, dtype: str) -> dict[str, Any]:
    """Read the model's variables; errors are those of `target_weights.from_hf`."""
    return target_weights.from_hf(_open(directory), config.model, dtype)


def tensors(variables: Mapping[str, Any], config: DraftModelConfig) -> dict[str, np.ndarray]:
    """Return the model's tensors by Hugging Face name."""
    return target_weights.to_hf(variables, config.model)


def check(directory: str | os.PathLike, config: DraftModelConfig) -> None:
    """Raise WeightMismatch unless names, shapes and dtypes fit; weights are not read."""
    found, head = _open(directory), family_of(config.model).weight_name("lm_head.weight")
    ignored = target_weights.ignored(config.model, found)
    check_fit(
        target_weights.target_leaves(config.model),
        found,
        lambda name: name == head or ignored(name),
    )


def _open(directory: str | os.PathLike) -> Tensors:
    """Open the model's tensors, by the names of its full weights."""
    if is_gguf(Path(directory)):
        return read_gguf(Path(directory))
    return open_full(open_weights(directory), read_entries(Path(directory) / "config.json"))


FORMAT = Format(
    matches, config_from_hf, for_target, read, check, json_writer(config_to_hf, tensors), pad=pad
)
