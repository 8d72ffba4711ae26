"""Qwen3 and Llama 3: dense layers, in Qwen3 with norms over queries and keys."""

from __future__ import annotations

from typing import Any

from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.hf_fields import integer


def _uses_window(hf: dict[str, Any]) -> bool:
    """Whether layers from `max_window_layers` on use a window; `layer_types` has precedence."""
    if not (hf.get("use_sliding_window") and hf.get("sliding_window")) or hf.get("layer_types"):
        return False
    layers = integer(hf, "num_hidden_layers")
    return hf.get("max_window_layers", layers) < layers


QWEN3 = TargetFamily(
    name="qwen3",
    architecture="Qwen3ForCausalLM",
    qk_norm=True,
    head_dim=128,
    gguf="qwen3",
    uses_window=_uses_window,
)


LLAMA = TargetFamily(
    name="llama", architecture="LlamaForCausalLM", gguf="llama", gguf_permuted=True
)
