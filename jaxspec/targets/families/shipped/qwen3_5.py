"""Qwen3.5, dense: three gated delta nets to a layer of attention, whose result is gated."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import DeltaConfig, TargetConfig
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.hf_fields import integer, read_head_dim
from jaxspec.targets.families.hf_rope import read_rope
from jaxspec.targets.families.layer_types import FULL, LINEAR, read_types

_HEAD_DIM = 256
# Entries of published files, and the values that the library computes with.
_ONLY = {
    "attn_output_gate": (True,),
    "output_gate_type": ("swish", "silu"),
    "mamba_ssm_dtype": ("float32",),
}


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    for name, values in _ONLY.items():
        if hf.get(name) not in (None, *values):
            raise ValueError(
                f"config.json: {name} {hf[name]!r} is not supported for Qwen3.5 (supported: "
                f"{', '.join(map(repr, values))})"
            )
    share = {} if hf.get("partial_rotary_factor") else {"partial_rotary_factor": 0.25}
    return {
        "rope": read_rope(hf | share, read_head_dim(hf, _HEAD_DIM)),
        "norm_centred": True,
        "norm_wide": True,
        "output_gate": True,
    }


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    count, every = integer(hf, "num_hidden_layers"), integer(hf, "full_attention_interval", 4)
    usual = [LINEAR if (i + 1) % every else FULL for i in range(count)]
    types = read_types(hf, usual, (FULL, LINEAR))
    if FULL not in types:
        raise ValueError(f"config.json: layer_types needs a layer of type {FULL!r}")
    delta = DeltaConfig(
        key_heads=integer(hf, "linear_num_key_heads", 16),
        value_heads=integer(hf, "linear_num_value_heads", 32),
        key_dim=integer(hf, "linear_key_head_dim", 128),
        value_dim=integer(hf, "linear_value_head_dim", 128),
        conv_width=integer(hf, "linear_conv_kernel_dim", 4),
    )
    if delta.value_heads % delta.key_heads:
        raise ValueError(
            f"config.json: linear_num_value_heads {delta.value_heads} is not a multiple of "
            f"linear_num_key_heads {delta.key_heads}"
        )
    return [{} if kind == FULL else {"delta": delta} for kind in types]


def _write(config: TargetConfig) -> dict[str, Any]:
    layers = config.list_layers()
    delta = next((layer.delta for layer in layers if layer.delta is not None), None)
    types = [FULL if layer.delta is None else LINEAR for layer in layers]
    if delta is None:
        return {"layer_types": types}
    return {
        "layer_types": types,
        "linear_num_key_heads": delta.key_heads,
        "linear_num_value_heads": delta.value_heads,
        "linear_key_head_dim": delta.key_dim,
        "linear_value_head_dim": delta.value_dim,
        "linear_conv_kernel_dim": delta.conv_width,
    }


QWEN3_5 = TargetFamily(
    name="qwen3_5_text",
    architecture="Qwen3_5ForCausalLM",
    qk_norm=True,
    head_dim=_HEAD_DIM,
    read=_read,
    read_layers=_read_layers,
    write=_write,
    defaults={"num_key_value_heads": 4},
)
