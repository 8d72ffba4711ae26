"""gpt-oss: sinks, windows on every other layer, and experts with biases and clamped units."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import LayerConfig, MoEConfig, TargetConfig
from jaxspec.io.weights.weight_map import Leaf
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import Getter, GgufFamily, read_window
from jaxspec.targets.families.hf_fields import integer, read_head_dim
from jaxspec.targets.families.hf_rope import read_rope
from jaxspec.targets.families.layer_types import (
    FULL,
    SLIDING,
    read_types,
    read_windows,
    write_windows,
)

_HEAD_DIM = 64
_ROPE = {"rope_type": "yarn", "factor": 32.0, "truncate": False}
_DEFAULTS = {
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-5,
    "sliding_window": 128,
    "rope_parameters": _ROPE | {"original_max_position_embeddings": 4096},
}


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    chosen = hf.get("num_experts_per_tok") or hf.get("experts_per_token")
    moe = MoEConfig(
        num_experts=integer(hf, "num_local_experts"),
        experts_per_token=integer({"num_experts_per_tok": chosen}, "num_experts_per_tok"),
        expert_ffn_size=integer(hf, "intermediate_size"),
        score="chosen",
        router_bias=True,
        expert_bias=True,
        clamp=(float(hf.get("swiglu_limit", 7.0)), float(hf.get("swiglu_alpha", 1.702))),
    )
    biased = bool(hf.get("attention_bias", True))
    return {
        "rope": read_rope(hf, read_head_dim(hf, _HEAD_DIM), theta=150000.0),
        "sinks": True,
        "norm_wide": True,
        "qkv_bias": biased,
        "o_bias": biased,
        "moe": moe,
    }


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    count = integer(hf, "num_hidden_layers")
    return read_windows(hf, read_types(hf, [FULL if i % 2 else SLIDING for i in range(count)]))


def _write(config: TargetConfig) -> dict[str, Any]:
    moe = config.moe
    return {
        "intermediate_size": moe.expert_ffn_size,
        "num_local_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "experts_per_token": moe.experts_per_token,
        "swiglu_limit": moe.clamp[0],
        "swiglu_alpha": moe.clamp[1],
    } | write_windows(config)


def _list_experts(config: LayerConfig, index: int) -> list[Leaf]:
    """List the leaves of a layer's experts, whose gate and up alternate in the last axis."""
    moe, width, ffn = config.moe, config.hidden_size, config.moe.expert_ffn_size
    path, names, count = (f"layers_{index}", "mlp"), f"model.layers.{index}.mlp", moe.num_experts

    def one(key: str, name: str, *shape: int, **how: bool) -> Leaf:
        return Leaf((*path, key), ((f"{names}.{name}",),), (shape,), **how)

    return [
        one("router", "router.weight", count, width, transpose=True),
        one("router_bias", "router.bias", count),
        one("gate_up", "experts.gate_up_proj", count, width, 2 * ffn, alternating=True),
        one("gate_up_bias", "experts.gate_up_proj_bias", count, 2 * ffn, alternating=True),
        one("down", "experts.down_proj", count, ffn, width),
        one("down_bias", "experts.down_proj_bias", count, width),
    ]


_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "attn_sinks.weight": "self_attn.sinks",
    "ffn_gate_inp": "mlp.router",
}
_EXPERTS = {
    "mlp.experts.gate_up_proj": ("ffn_gate_exps.weight", "ffn_up_exps.weight"),
    "mlp.experts.gate_up_proj_bias": ("ffn_gate_exps.bias", "ffn_up_exps.bias"),
    "mlp.experts.down_proj": ("ffn_down_exps.weight",),
    "mlp.experts.down_proj_bias": ("ffn_down_exps.bias",),
}


def _read_gguf(get: Getter) -> dict[str, Any]:
    entries = {
        "num_local_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "intermediate_size": get("expert_feed_forward_length"),
    }
    return entries | read_window(get)


GPT_OSS = TargetFamily(
    name="gpt_oss",
    architecture="GptOssForCausalLM",
    defaults=_DEFAULTS,
    head_dim=_HEAD_DIM,
    read=_read,
    read_layers=_read_layers,
    write=_write,
    list_sparse=_list_experts,
    gguf=GgufFamily("gpt-oss", layers=_NAMES, experts=_EXPERTS, truncate=False, read=_read_gguf),
)
