"""Entries of config.json that decoder layers of targets and drafters share."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import TransformerConfig
from jaxspec.targets.families.hf_rope import read_rope, write_rope

# Names of activations in config.json -> in `LayerConfig`.
ACTIVATIONS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh"}


def transformer_fields(hf: dict[str, Any], default_head_dim: int | None = None) -> dict[str, Any]:
    """Read the fields of `TransformerConfig` that Llama's files state, for targets and drafters.

    Raises:
      ValueError: an entry is missing, does not fit another one, or is not supported.
    """
    hidden, heads = integer(hf, "hidden_size"), integer(hf, "num_attention_heads")
    kv_heads = integer(hf, "num_key_value_heads", heads)
    head_dim = read_head_dim(hf, default_head_dim)
    if heads % kv_heads:
        raise ValueError(
            f"config.json: num_attention_heads {heads} is not a multiple of "
            f"num_key_value_heads {kv_heads}"
        )
    if head_dim % 2:
        raise ValueError(f"config.json: head_dim {head_dim} is odd; rotary positions need pairs")
    named = hf.get("hidden_activation") or hf.get("hidden_act") or "silu"
    if named not in ACTIVATIONS:
        raise ValueError(
            f"config.json: hidden_act {named!r} is not supported (supported: "
            f"{', '.join(map(repr, ACTIVATIONS))})"
        )
    biased = bool(hf.get("attention_bias", False))
    return {
        "hidden_size": hidden,
        "num_layers": integer(hf, "num_hidden_layers"),
        "num_heads": heads,
        "num_kv_heads": kv_heads,
        "head_dim": head_dim,
        "ffn_size": integer(hf, "intermediate_size"),
        "activation": ACTIVATIONS[named],
        "rope": read_rope(hf, head_dim),
        "norm_eps": float(hf.get("rms_norm_eps", 1e-6)),
        "qkv_bias": biased,
        "o_bias": biased,
    }


def transformer_fields_to_hf(config: TransformerConfig, dtype: str) -> dict[str, Any]:
    """Invert `transformer_fields`."""
    activation = "silu" if config.activation == "silu" else "gelu_pytorch_tanh"
    return {
        "hidden_size": config.hidden_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_heads,
        "num_key_value_heads": config.num_kv_heads,
        "head_dim": config.head_dim,
        "intermediate_size": config.ffn_size,
        "hidden_act": activation,
        "rms_norm_eps": config.norm_eps,
        "attention_bias": config.qkv_bias,
        **write_rope(config.rope),
        "dtype": dtype,
        "torch_dtype": dtype,
    }


def find_text_config(hf: dict[str, Any]) -> dict[str, Any]:
    """Return the entries of the text model, which a model of text and images has in `text_config`.

    What that does not state, the entries around it do, but for the architecture.
    """
    text = hf.get("text_config")
    if not isinstance(text, dict):
        return hf
    return {name: value for name, value in hf.items() if name != "architectures"} | text


def read_head_dim(hf: dict[str, Any], default: int | None = None) -> int:
    """Read the width of a head."""
    hidden, heads = integer(hf, "hidden_size"), integer(hf, "num_attention_heads")
    return integer(hf, "head_dim", default or hidden // heads)


def read_first(hf: dict[str, Any], *names: str) -> int:
    """Read a positive integer that files spell in several ways, the first of `names` that is there.

    Raises:
      ValueError: none is there, or it is not a positive integer.
    """
    found = [name for name in names if hf.get(name) is not None]
    return integer(hf, (found or names)[0])


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
