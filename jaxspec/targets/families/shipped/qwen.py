"""Qwen2, Qwen2.5 and Qwen3: Qwen2 has biases, Qwen3 norms over queries and keys."""

from __future__ import annotations

from typing import Any

from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import GgufFamily
from jaxspec.targets.families.hf_fields import integer
from jaxspec.targets.families.layer_types import (
    FULL,
    SLIDING,
    read_types,
    read_windows,
    write_windows,
)


def read_qwen_windows(hf: dict[str, Any]) -> list[dict[str, Any]]:
    """Read windows: of layers from `max_window_layers` on, unless `layer_types` says otherwise."""
    if not (hf.get("use_sliding_window") and hf.get("sliding_window")):
        return read_windows(hf, [FULL for _ in read_types(hf)])
    layers, first = integer(hf, "num_hidden_layers"), hf.get("max_window_layers", 28)
    return read_windows(
        hf, read_types(hf, [SLIDING if i >= first else FULL for i in range(layers)])
    )


QWEN2 = TargetFamily(
    name="qwen2",
    architecture="Qwen2ForCausalLM",
    read=lambda hf: {"qkv_bias": True, "o_bias": False},
    read_layers=read_qwen_windows,
    write=write_windows,
    gguf=GgufFamily("qwen2"),
)
QWEN3 = TargetFamily(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    qk_norm=True,
    head_dim=128,
    read_layers=read_qwen_windows,
    write=write_windows,
    gguf=GgufFamily("qwen3"),
)
