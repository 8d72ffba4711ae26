"""The record that describes a family of target models to the rest of the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from jaxspec.core.config import TargetConfig


def _nothing(hf_or_config: Any) -> dict[str, Any]:
    return {}


def _same_name(name: str) -> str:
    return name


def _never(hf: dict[str, Any]) -> bool:
    return False


@dataclasses.dataclass(frozen=True)
class TargetFamily:
    """The name of a family of target models, and how its files differ from Llama's.

    Attributes:
      name: `model_type` in config.json, and `TargetConfig.family`.
      architecture: the class that config.json names, for example `LlamaForCausalLM`.
      qk_norm: whether queries and keys of each head are normalised by RMSNorm.
      head_dim: width of a head if config.json does not give it (default: hidden_size / heads).
      read: config.json -> further fields of `TargetConfig`, for example `moe`.
      write: TargetConfig -> entries of these fields in config.json.
      uses_window: config.json -> whether sliding-window attention is in use, which targets do not
        support. `layer_types` is always checked, too.
      weight_name: Llama's name of a tensor -> its name in this family's files.
      gguf: llama.cpp's name of the architecture in GGUF files; None: GGUF is not supported.
      gguf_permuted: whether llama.cpp permutes the rows of query and key projections in GGUF.
    """

    name: str
    architecture: str
    qk_norm: bool = False
    head_dim: int | None = None
    read: Callable[[dict[str, Any]], dict[str, Any]] = _nothing
    write: Callable[[TargetConfig], dict[str, Any]] = _nothing
    uses_window: Callable[[dict[str, Any]], bool] = _never
    weight_name: Callable[[str], str] = _same_name
    gguf: str | None = None
    gguf_permuted: bool = False
