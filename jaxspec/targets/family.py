"""The one record by which the rest of the library knows a family of target models."""

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
    """What a family of target models is called and how its files differ from Llama's.

    Attributes:
      name: `model_type` in config.json, and `TargetConfig.family`.
      architecture: the class that config.json names, such as `LlamaForCausalLM`.
      qk_norm: RMSNorm over each head's queries and keys.
      head_dim: width of a head where config.json has none; None: hidden_size / heads.
      read: config.json -> further fields of `TargetConfig`, such as `moe`.
      write: TargetConfig -> their entries in config.json.
      uses_window: config.json -> whether sliding-window attention is in use, which targets do not
        support. `layer_types` is looked at in any case.
      weight_name: Llama's name of a tensor -> the name in this family's files.
    """

    name: str
    architecture: str
    qk_norm: bool = False
    head_dim: int | None = None
    read: Callable[[dict[str, Any]], dict[str, Any]] = _nothing
    write: Callable[[TargetConfig], dict[str, Any]] = _nothing
    uses_window: Callable[[dict[str, Any]], bool] = _never
    weight_name: Callable[[str], str] = _same_name
