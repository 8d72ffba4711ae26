"""Phi-3, Phi-3.5 and Phi-4: Llama's layers, with q, k and v, and gate and up, stored as one."""

from __future__ import annotations

from typing import Any

from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import Getter, GgufFamily, read_share, read_window
from jaxspec.targets.families.hf_fields import integer
from jaxspec.targets.families.layer_types import SLIDING, read_types, read_windows, write_windows


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    count = integer(hf, "num_hidden_layers")
    return read_windows(hf, read_types(hf, [SLIDING] * count if hf.get("sliding_window") else None))


_NAMES = {"attn_qkv": "self_attn.qkv_proj", "ffn_up": "mlp.gate_up_proj"}


def _read_gguf(get: Getter) -> dict[str, Any]:
    head_dim = get("embedding_length") // get("attention.head_count")
    return {"head_dim": head_dim} | read_share(get, head_dim) | read_window(get)


PHI3 = TargetFamily(
    name="phi3",
    architecture="Phi3ForCausalLM",
    defaults={"rms_norm_eps": 1e-5},
    read_layers=_read_layers,
    write=write_windows,
    fused=True,
    gguf=GgufFamily("phi3", layers=_NAMES, read=_read_gguf),
)
