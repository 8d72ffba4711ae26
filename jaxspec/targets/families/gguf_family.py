"""How llama.cpp's files of a family differ from those of Qwen3."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

# Reads the entry `<architecture>.<name>` of a file, or a default.
Getter = Callable[..., Any]


@dataclasses.dataclass(frozen=True)
class GgufFamily:
    """Names, conversions and metadata of a family in GGUF files.

    Attributes:
      architecture: llama.cpp's name.
      permuted: whether it permutes the rows of query and key projections.
      centred: whether it adds 1 to the weights of norms.
      layers: its names of a layer's tensors -> Hugging Face's, where they are not Qwen3's. A name
        with its `.weight` or `.bias` stands for a whole name, which may end otherwise.
      experts: Hugging Face's names of tensors that hold all experts of a layer -> the stored
        tensors whose entries alternate in the last axis. Matrices are stored transposed. Without
        it, each expert's tensors have names of their own, see `jaxspec.targets.gguf_files.tensors`.
      truncate: whether the ramp of YaRN begins and ends at whole pairs, which files do not say.
      read: getter -> entries of config.json that Qwen3's files do not state, or state otherwise.
    """

    architecture: str
    permuted: bool = False
    centred: bool = False
    layers: Mapping[str, str] = dataclasses.field(default_factory=dict)
    experts: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)
    truncate: bool = True
    read: Callable[[Getter], dict[str, Any]] = lambda get: {}


def read_window(get: Getter) -> dict[str, Any]:
    """Read the window that layers have, if any has one; 0 means none."""
    window = get("attention.sliding_window", 0)
    return {"sliding_window": window} if window else {}


def read_share(get: Getter, head_dim: int) -> dict[str, Any]:
    """Read which share of a head is rotated."""
    share = get("rope.dimension_count", head_dim) / head_dim
    return {"partial_rotary_factor": share} if share < 1 else {}
