"""Qwen3-MoE: Qwen3 with sparse feed-forward layers."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import MoEConfig, TargetConfig
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import Getter, GgufFamily
from jaxspec.targets.families.hf_fields import integer
from jaxspec.targets.families.layer_types import write_windows
from jaxspec.targets.families.shipped.qwen import read_qwen_windows


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    named = "num_experts" if hf.get("num_experts") is not None else "num_local_experts"
    experts, chosen = integer(hf, named), integer(hf, "num_experts_per_tok")
    if chosen > experts:
        raise ValueError(f"config.json: num_experts_per_tok {chosen} exceeds num_experts {experts}")
    moe = MoEConfig(
        num_experts=experts,
        experts_per_token=chosen,
        expert_ffn_size=integer(hf, "moe_intermediate_size"),
        normalize_weights=bool(hf.get("norm_topk_prob", False)),
    )
    return {"moe": moe}


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    """Read which layers are sparse: multiples of `decoder_sparse_step` not in `mlp_only_layers`."""
    listed, step = set(hf.get("mlp_only_layers") or ()), integer(hf, "decoder_sparse_step", 1)
    layers = range(integer(hf, "num_hidden_layers"))
    windows = read_qwen_windows(hf) or [{} for _ in layers]
    dense = [i in listed or bool((i + 1) % step) for i in layers]
    return [windows[i] | ({"moe": None} if dense[i] else {}) for i in layers]


def _write(config: TargetConfig) -> dict[str, Any]:
    if config.moe is None:
        raise ValueError("a Qwen3-MoE target needs sparse layers: give its config `moe`")
    dense = [i for i, layer in enumerate(config.list_layers()) if layer.moe is None]
    return {
        "num_experts": config.moe.num_experts,
        "num_experts_per_tok": config.moe.experts_per_token,
        "moe_intermediate_size": config.moe.expert_ffn_size,
        "norm_topk_prob": config.moe.normalize_weights,
        "decoder_sparse_step": 1,
        "mlp_only_layers": dense,
    } | write_windows(config)


def _read_gguf(get: Getter) -> dict[str, Any]:
    return {
        "num_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        # llama.cpp normalises the weights of the chosen experts always.
        "norm_topk_prob": True,
    }


QWEN3_MOE = TargetFamily(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    qk_norm=True,
    defaults={"num_key_value_heads": 4},
    read=_read,
    read_layers=_read_layers,
    write=_write,
    gguf=GgufFamily("qwen3moe", read=_read_gguf),
)
