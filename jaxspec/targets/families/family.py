"""The record that describes a family of target models to the rest of the library."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any

from jaxspec.core.config import LayerConfig, TargetConfig
from jaxspec.io.weights.weight_map import Leaf
from jaxspec.targets.families.gguf_family import GgufFamily


def _nothing(hf_or_config: Any) -> dict[str, Any]:
    return {}


def _same_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    return []


def _same_name(name: str) -> str:
    return name


@dataclasses.dataclass(frozen=True)
class TargetFamily:
    """The name of a family of target models, and how its files differ from Llama's.

    Attributes:
      name: `model_type` in config.json, and `TargetConfig.family`.
      architecture: the class that config.json names, for example `LlamaForCausalLM`.
      qk_norm: whether queries and keys of each head are normalised by RMSNorm.
      head_dim: width of a head if config.json does not give it (default: hidden_size / heads).
      defaults: entries of config.json that files may leave out, as transformers' class reads
        them. A model of text and images states in `text_config` only what differs from these.
      read: config.json -> fields of `TargetConfig` that Llama's files do not state, or state
        otherwise.
      read_layers: config.json -> fields of `LayerConfig` in which each layer differs from them;
        empty if layers do not differ.
      write: TargetConfig -> entries of these fields in config.json.
      weight_name: Llama's name of a tensor -> its name in this family's files.
      fused: whether files hold q, k and v as `qkv_proj`, and gate and up as `gate_up_proj`.
      list_sparse: (config of a layer, its number) -> leaves of its experts, with the names of this
        family's files; None: Qwen3-MoE's.
      further_layers: whether files hold layers behind the last one, a head that predicts further
        tokens, which are not read.
      unused: how names of tensors begin that files may hold and the forward pass does not use.
      gguf: how GGUF files hold the family; None: they are not supported.
    """

    name: str
    architecture: str
    qk_norm: bool = False
    head_dim: int | None = None
    defaults: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    read: Callable[[dict[str, Any]], dict[str, Any]] = _nothing
    read_layers: Callable[[dict[str, Any]], list[dict[str, Any]]] = _same_layers
    write: Callable[[TargetConfig], dict[str, Any]] = _nothing
    weight_name: Callable[[str], str] = _same_name
    fused: bool = False
    list_sparse: Callable[[LayerConfig, int], list[Leaf]] | None = None
    further_layers: bool = False
    unused: tuple[str, ...] = ()
    gguf: GgufFamily | None = None
