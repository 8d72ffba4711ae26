"""Medusa heads as published, to and from `MedusaConfig` and the variables of `Medusa`.

The authors' layout: config.json and medusa_lm_head.safetensors or .pt. Head i's residual block j is
`{i}.{j}.linear`, its output projection `{i}.{n}` after n blocks; heads that share the target's
projection, as the first training script made them, have none. The config says neither that nor the
target's sizes: `for_target` fills these in, and what this library adds to it stands in its
`jaxspec` object.

vLLM's layout, which is read and not written: `blocks.{i}.layers.{j}` and `lm_heads.{i}` in
model.safetensors, all perhaps behind `medusa_heads.`, and where the heads share a projection a copy
of the target's, which is passed over.
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.feature_layers import Layers
from jaxspec.drafters.format import About, Format, json_writer
from jaxspec.drafters.hf_fields import own_fields, score_temperature
from jaxspec.drafters.medusa.config import MedusaConfig
from jaxspec.io.safetensors_files import WEIGHTS as MODEL
from jaxspec.io.safetensors_files import WeightFiles
from jaxspec.io.tensors import Tensors
from jaxspec.io.torch_files import TorchFile
from jaxspec.io.weight_map import Leaf, check_fit, read_tree, write_tree
from jaxspec.targets.hf_fields import integer

WEIGHTS = "medusa_lm_head.safetensors"
TORCH_WEIGHTS = "medusa_lm_head.pt"
# vLLM's names.
_BLOCK = re.compile(r"(?:medusa_heads\.)?blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
_HEAD = re.compile(r"(?:medusa_heads\.)?lm_heads\.(\d+)\.weight")


def matches(hf: Mapping[str, Any]) -> bool:
    """Whether a config.json describes Medusa heads, in either layout."""
    return "medusa_num_heads" in hf or _vllm(hf)


def config_from_hf(hf: dict[str, Any]) -> MedusaConfig:
    """The `MedusaConfig` of a config.json that `matches`.

    `hidden_size` and `vocab_size` are 0 and `feature_layers` empty where the file does not state
    them, see `for_target`.

    Raises:
      ValueError: a missing field, or a setting that is not supported.
    """
    own = hf.get("jaxspec") or {}
    if _vllm(hf):
        return _vllm_config(hf)
    return MedusaConfig(
        hidden_size=_size(hf, "hidden_size"),
        heads=integer(hf, "medusa_num_heads"),
        layers=integer(hf, "medusa_num_layers", 1),
        own_projection=bool(own.get("own_projection", True)),
        feature_layers=tuple(own.get("feature_layers") or ()),
        vocab_size=_size(hf, "vocab_size"),
        score_temperature=score_temperature(hf),
    )


def config_to_hf(config: MedusaConfig, about: About, dtype: str) -> dict[str, Any]:
    """A config.json in the authors' layout; Medusa's own code reads it where the heads have their
    own projection.
    """
    return {
        "model_type": "medusa",
        "medusa_num_heads": config.heads,
        "medusa_num_layers": config.layers,
        "base_model_name_or_path": about.provenance.target or "unknown",
        "hidden_size": config.hidden_size,
        "vocab_size": config.vocab_size,
        "dtype": dtype,
        "torch_dtype": dtype,
        "jaxspec": own_fields(config, about.num_layers, about.provenance)
        | {"own_projection": config.own_projection},
    }


def for_target(config: MedusaConfig, target: TargetConfig) -> MedusaConfig:
    """`config` with the target's sizes where its file stated none, reading the hidden state after
    the target's final norm.

    Raises:
      ValueError: the heads do not fit the target.
    """
    wrong = [
        f"its {name.replace('_', ' ')} is {size}, the target's {getattr(target, name)}"
        for name in ("hidden_size", "vocab_size")
        if (size := getattr(config, name)) and size != getattr(target, name)
    ]
    if config.feature_layers not in ((), (target.num_layers,)):
        wrong.append(
            f"it was made for a target of {config.feature_layers[0]} layers, this one has {target.num_layers}"
        )
    if wrong:
        raise ValueError(
            f"the drafter does not fit the target: {'; '.join(wrong)}; use a drafter trained for this target"
        )
    sizes = {"hidden_size": target.hidden_size, "vocab_size": target.vocab_size}
    return dataclasses.replace(config, **sizes, feature_layers=(target.num_layers,))


def read(directory: str | os.PathLike, config: MedusaConfig, dtype: str) -> dict[str, Any]:
    """Variables of `Medusa(config)`.

    Raises:
      FileNotFoundError: no weights.
      WeightMismatch: missing, unexpected, misshapen and non-float tensors, all in one report.
      ValueError: unsafe or damaged files, or NaN.
    """
    return read_tree(leaves(config), _weights(Path(directory), config), dtype, _borrowed)


def check(directory: str | os.PathLike, config: MedusaConfig) -> None:
    """Raise what `read` would, short of reading weights: their names, shapes and dtypes are looked
    at.
    """
    check_fit(leaves(config), _weights(Path(directory), config), _borrowed)


def tensors(variables: Mapping[str, Any], config: MedusaConfig) -> dict[str, np.ndarray]:
    """Tensors by published name, in the variables' dtype."""
    return write_tree(leaves(config), variables)


def leaves(config: MedusaConfig) -> list[Leaf]:
    """The table of all weights."""
    heads, width = range(config.heads), config.hidden_size
    table = []
    for j in range(config.layers):
        for name, part, shape in (("kernel", "weight", (width, width)), ("bias", "bias", (width,))):
            names = tuple((f"{i}.{j}.linear.{part}",) for i in heads)
            table.append(
                Leaf(
                    (f"block_{j}", name), names, (shape,), transpose=name == "kernel", stacked=True
                )
            )
    if config.own_projection:
        names = tuple((f"{i}.{config.layers}.weight",) for i in heads)
        table.append(
            Leaf(("lm_head",), names, ((config.vocab_size, width),), transpose=True, stacked=True)
        )
    return table


def _vllm(hf: Mapping[str, Any]) -> bool:
    return (hf.get("architectures") or [None])[0] == "MedusaModel" and "medusa_num_heads" not in hf


def _vllm_config(hf: dict[str, Any]) -> MedusaConfig:
    vocab = integer(hf, "vocab_size")
    if integer(hf, "truncated_vocab_size", vocab) != vocab:
        raise ValueError(
            "config.json: truncated_vocab_size is not supported: use heads of the whole vocabulary"
        )
    sizes = (
        integer(hf, "hidden_size"),
        integer(hf, "num_heads"),
        integer(hf, "num_hidden_layers", 1),
    )
    return MedusaConfig(*sizes, own_projection=not hf.get("original_lm_head"), vocab_size=vocab)


def _size(hf: dict[str, Any], name: str) -> int:
    """A size of the target, 0 where the file does not state it."""
    return 0 if hf.get(name) is None else integer(hf, name)


class _Vllm(Tensors):
    """A view of vLLM's tensors by the authors' names; blocks without a bias get one of zeros."""

    def __init__(self, read: Tensors, layers: int):
        self._read, self._home = read, {}
        for name in read:
            block, head = _BLOCK.fullmatch(name), _HEAD.fullmatch(name)
            ours = (
                f"{block[1]}.{block[2]}.linear.{block[3]}"
                if block
                else f"{head[1]}.{layers}.weight"
                if head
                else name
            )
            self._home[ours] = name
            if block and block[3] == "weight":
                self._home.setdefault(f"{block[1]}.{block[2]}.linear.bias", name)

    def __getitem__(self, name: str) -> np.ndarray:
        tensor = self._read[self._home[name]]
        return np.zeros(len(tensor), tensor.dtype) if self._made(name) else tensor

    def shape(self, name: str) -> tuple[int, ...]:
        shape = self._read.shape(self._home[name])
        return shape[:1] if self._made(name) else shape

    def dtype(self, name: str) -> str:
        return self._read.dtype(self._home[name])

    def _made(self, name: str) -> bool:
        return name.endswith(".bias") and not self._home[name].endswith(".bias")


def _borrowed(name: str) -> bool:
    """Whether a tensor is the copy of the target's projection in vLLM's layout."""
    return name.removeprefix("medusa_heads.") == "lm_head.weight"


def _weights(directory: Path, config: MedusaConfig) -> Tensors:
    """The tensors of a directory by the authors' names, from safetensors where there are any."""
    found = next((name for name in (WEIGHTS, TORCH_WEIGHTS) if (directory / name).is_file()), None)
    if found is None and (directory / MODEL).is_file():
        return _Vllm(WeightFiles(directory), config.layers)
    if found is None:
        raise FileNotFoundError(
            f"{directory} has no Medusa heads: expected {WEIGHTS}, {TORCH_WEIGHTS} or vLLM's {MODEL}"
        )
    return (
        TorchFile(directory / found)
        if found == TORCH_WEIGHTS
        else WeightFiles.of_file(directory / found)
    )


def recognise(hf: dict[str, Any], names: Collection[str]) -> bool:
    """Whether a config.json looks like one of Medusa heads."""
    architecture = str((hf.get("architectures") or [""])[0])
    return "medusa_num_heads" in hf or "Medusa" in architecture or hf.get("model_type") == "medusa"


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Which of the layouts."""
    return "vLLM" if "medusa_num_heads" not in hf else "original"


def default_layers(hf: dict[str, Any]) -> Layers:
    """No layer's output is read, but what the target's final norm makes of the last one's."""
    return Layers(None, "none: the heads read the target's last hidden state", "")


FORMAT = Format(
    matches,
    config_from_hf,
    for_target,
    read,
    check,
    json_writer(config_to_hf, tensors, WEIGHTS),
    recognise=recognise,
    layout=layout,
    default_layers=default_layers,
    weights=(WEIGHTS, TORCH_WEIGHTS),
)
