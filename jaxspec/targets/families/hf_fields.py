"""Entries of config.json that decoder layers of targets and drafters share."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import RopeScaling, TransformerConfig


def transformer_fields(hf: dict[str, Any], default_head_dim: int | None = None) -> dict[str, Any]:
    """Read the fields of `TransformerConfig` except `qk_norm`, for targets and block drafters."""
    hidden, heads = integer(hf, "hidden_size"), integer(hf, "num_attention_heads")
    kv_heads = integer(hf, "num_key_value_heads", heads)
    head_dim = integer(hf, "head_dim", default_head_dim or hidden // heads)
    if heads % kv_heads:
        raise ValueError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if head_dim % 2:
        raise ValueError(f"config.json: head_dim {head_dim} is odd; rotary positions need pairs")
    if hf.get("hidden_act", "silu") != "silu":
        raise ValueError(
            f"config.json: hidden_act {hf['hidden_act']!r} is not supported (only 'silu' is)"
        )
    theta, scaling = rope_settings(hf)
    return {
        "hidden_size": hidden,
        "num_layers": integer(hf, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_size": integer(hf, "intermediate_size"),
        "rope_theta": theta,
        "rope_scaling": scaling,
        "norm_eps": float(hf.get("rms_norm_eps", 1e-6)),
        "attention_bias": bool(hf.get("attention_bias", False)),
    }


def transformer_fields_to_hf(config: TransformerConfig, dtype: str) -> dict[str, Any]:
    """Invert `transformer_fields`.

    RoPE is written in both spellings, since each serving engine knows only one of them.
    """
    scaling = {"rope_type": "default"}
    if config.rope_scaling is not None:
        scaling = {
            "rope_type": "llama3",
            "factor": config.rope_scaling.factor,
            "low_freq_factor": config.rope_scaling.low_freq_factor,
            "high_freq_factor": config.rope_scaling.high_freq_factor,
            "original_max_position_embeddings": config.rope_scaling.original_max_positions,
        }
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_size,
        "hidden_act": "silu",
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.attention_bias,
        "rope_theta": config.rope_theta,
        "rope_scaling": scaling if config.rope_scaling is not None else None,
        "rope_parameters": {**scaling, "rope_theta": config.rope_theta},
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def rope_settings(hf: dict[str, Any]) -> tuple[float, RopeScaling | None]:
    """Read RoPE's base and scaling.

    They are in `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4).
    """
    rope = {**(hf.get("rope_scaling") or {}), **(hf.get("rope_parameters") or {})}
    if any(isinstance(value, dict) for value in rope.values()):
        raise ValueError(
            "config.json: RoPE settings that differ between layer types are not supported"
        )
    theta = float(rope.get("rope_theta") or hf.get("rope_theta") or 10000.0)
    kind = rope.get("rope_type", rope.get("type", "default")) or "default"
    partial = rope.get("partial_rotary_factor", hf.get("partial_rotary_factor", 1.0))
    if partial not in (None, 1, 1.0):
        raise ValueError(
            f"config.json: partial_rotary_factor {partial} is not supported (only 1 is)"
        )
    if kind == "default":
        return theta, None
    if kind != "llama3":
        raise ValueError(
            f"config.json: rope type {kind!r} is not supported (supported: 'default', 'llama3')"
        )
    fields = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")
    missing = [field for field in fields if rope.get(field) is None]
    if missing:
        raise ValueError(f"config.json: rope type 'llama3' needs {', '.join(missing)}")
    return theta, RopeScaling(*(float(rope[field]) for field in fields[:3]), int(rope[fields[3]]))


def integer(hf: dict[str, Any], name: str, default: int | None = None) -> int:
    """Read a positive integer; if it is absent or null, return `default`.

    Raises:
      ValueError: it is not a positive integer, or it is absent and there is no default.
    """
    value = hf.get(name)
    value = default if value is None else value
    if value is None:
        raise ValueError(f"config.json lacks {name!r}")
    if not isinstance(value, int) or isinstance(value, bool) or value < 1:
        raise ValueError(f"config.json: {name} must be a positive integer, not {value!r}")
    return value
