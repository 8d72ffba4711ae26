"""Gemma 3 (text): norms around attention and feed-forward, windows on five layers of six."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.core.rope import Rope
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import Getter, GgufFamily, read_window
from jaxspec.targets.families.hf_fields import integer, read_head_dim
from jaxspec.targets.families.hf_rope import describe_rope, differs, read_rope
from jaxspec.targets.families.layer_types import (
    FULL,
    SLIDING,
    read_types,
    read_windows,
    write_windows,
)

_HEAD_DIM = 256
_DEFAULTS = {
    "vocab_size": 262208,
    "max_position_embeddings": 131072,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "sliding_window": 4096,
    "tie_word_embeddings": True,
}


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    for name in ("attn_logit_softcapping", "use_bidirectional_attention"):
        if hf.get(name):
            raise ValueError(f"config.json: {name} is not supported for Gemma 3")
    head_dim = read_head_dim(hf, _HEAD_DIM)
    return {
        "rope": read_rope(hf, head_dim, theta=1e6),
        "activation": "gelu_tanh",
        "score_scale": float(hf.get("query_pre_attn_scalar", 256)) ** -0.5,
        "norms": "sandwich",
        "norm_centred": True,
        "norm_wide": True,
        "embedding_scale": integer(hf, "hidden_size") ** 0.5,
        "softcap": hf.get("final_logit_softcapping"),
    }


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    count, every = integer(hf, "num_hidden_layers"), integer(hf, "sliding_window_pattern", 6)
    types = read_types(hf, [SLIDING if (i + 1) % every else FULL for i in range(count)])
    head_dim = read_head_dim(hf, _HEAD_DIM)
    local = float(hf.get("rope_local_base_freq") or 1e4)
    sliding = read_rope(hf, head_dim, SLIDING, local) if differs(hf) else Rope(local)
    ropes = {FULL: read_rope(hf, head_dim, theta=1e6), SLIDING: sliding}
    windows = read_windows(hf, types) or [{"window": None}] * count
    return [window | {"rope": ropes[kind]} for window, kind in zip(windows, types, strict=True)]


def _write(config: TargetConfig) -> dict[str, Any]:
    sliding = next((layer.rope for layer in config.list_layers() if layer.window), Rope(1e4))
    return {
        "hidden_activation": "gelu_pytorch_tanh",
        "query_pre_attn_scalar": round(config.score_scale**-2),
        "final_logit_softcapping": config.softcap,
        "rope_scaling": None,
        "rope_parameters": {FULL: describe_rope(config.rope), SLIDING: describe_rope(sliding)},
    } | write_windows(config)


_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
# The 27B model scales scores by its width over its heads, as llama.cpp knows from its layers.
_LARGEST = 62


def _read_gguf(get: Getter) -> dict[str, Any]:
    scalar = get("attention.key_length")
    if get("block_count") == _LARGEST:
        scalar = get("embedding_length") // get("attention.head_count")
    return {"query_pre_attn_scalar": scalar} | read_window(get)


GEMMA3 = TargetFamily(
    name="gemma3_text",
    architecture="Gemma3ForCausalLM",
    qk_norm=True,
    head_dim=_HEAD_DIM,
    defaults=_DEFAULTS,
    read=_read,
    read_layers=_read_layers,
    write=_write,
    gguf=GgufFamily("gemma3", centred=True, layers=_NAMES, read=_read_gguf),
)
