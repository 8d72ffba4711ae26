"""Llama 3, Mistral and Ministral: Llama's layers, in the latter with windows."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import GgufFamily
from jaxspec.targets.families.hf_fields import integer
from jaxspec.targets.families.hf_rope import write_rope
from jaxspec.targets.families.layer_types import SLIDING, read_types, read_windows, write_windows


def _slide_everywhere(hf: dict[str, Any]) -> list[dict[str, Any]]:
    """Read Mistral's window, which all layers have if the file states one."""
    window = hf.get("sliding_window")
    types = [SLIDING] * integer(hf, "num_hidden_layers") if window else None
    return read_windows(hf, read_types(hf, types))


def _slide_by_type(hf: dict[str, Any]) -> list[dict[str, Any]]:
    return read_windows(hf, read_types(hf))


def _read_growth(hf: dict[str, Any]) -> dict[str, Any]:
    """Read by how much queries grow with their position (`llama_4_scaling_beta`)."""
    rope = hf.get("rope_parameters") or {}
    beta, original = (
        rope.get(name) for name in ("llama_4_scaling_beta", "original_max_position_embeddings")
    )
    return {"position_growth": (float(beta), float(original))} if beta else {}


def _write_growth(config: TargetConfig) -> dict[str, Any]:
    if config.position_growth is None:
        return {}
    entries = write_rope(config.rope)["rope_parameters"]
    return {"rope_parameters": entries | {"llama_4_scaling_beta": config.position_growth[0]}}


_DEFAULTS = {
    "vocab_size": 32000,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
}
_DEFAULTS_3 = _DEFAULTS | {
    "vocab_size": 131072,
    "max_position_embeddings": 262144,
    "rms_norm_eps": 1e-5,
    "rope_parameters": {
        "rope_type": "yarn",
        "rope_theta": 1e6,
        "factor": 16.0,
        "original_max_position_embeddings": 16384,
        "attention_factor": 1.0,
        "llama_4_scaling_beta": 0.1,
    },
}

LLAMA = TargetFamily(
    name="llama",
    architecture="LlamaForCausalLM",
    read_layers=_slide_by_type,
    gguf=GgufFamily("llama", permuted=True),
)
MISTRAL = TargetFamily(
    name="mistral",
    architecture="MistralForCausalLM",
    defaults=_DEFAULTS,
    read_layers=_slide_everywhere,
    write=write_windows,
)
MINISTRAL = TargetFamily(
    name="ministral",
    architecture="MinistralForCausalLM",
    defaults=_DEFAULTS,
    read_layers=_slide_everywhere,
    write=write_windows,
)
MINISTRAL3 = TargetFamily(
    name="ministral3",
    architecture="Ministral3ForCausalLM",
    defaults=_DEFAULTS_3,
    read=_read_growth,
    read_layers=_slide_everywhere,
    write=lambda config: write_windows(config) | _write_growth(config),
)
