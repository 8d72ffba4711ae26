"""Qwen3-MoE: Qwen3 with sparse feed-forward layers."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import MoEConfig, TargetConfig
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.hf_fields import integer


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    """Read which layers are sparse: multiples of `decoder_sparse_step` not in `mlp_only_layers`."""
    experts = integer(
        hf, "num_experts" if hf.get("num_experts") is not None else "num_local_experts"
    )
    chosen, step = integer(hf, "num_experts_per_tok"), integer(hf, "decoder_sparse_step", 1)
    if chosen > experts:
        raise ValueError(f"config.json: num_experts_per_tok {chosen} exceeds num_experts {experts}")
    listed = set(hf.get("mlp_only_layers") or ())
    dense = tuple(
        i for i in range(integer(hf, "num_hidden_layers")) if i in listed or (i + 1) % step
    )
    moe = MoEConfig(
        experts,
        chosen,
        integer(hf, "moe_intermediate_size"),
        bool(hf.get("norm_topk_prob", False)),
        dense,
    )
    return {"moe": moe}


def _write(config: TargetConfig) -> dict[str, Any]:
    if config.moe is None:
        raise ValueError("a Qwen3-MoE target needs sparse layers: give its config `moe`")
    return {
        "num_experts": config.moe.num_experts,
        "num_experts_per_tok": config.moe.experts_per_token,
        "moe_intermediate_size": config.moe.expert_ffn_size,
        "norm_topk_prob": config.moe.normalize_weights,
        "decoder_sparse_step": 1,
        "mlp_only_layers": list(config.moe.dense_layers),
    }


def _uses_window(hf: dict[str, Any]) -> bool:
    return bool(hf.get("use_sliding_window") and hf.get("sliding_window"))


QWEN3_MOE = TargetFamily(
    name="qwen3_moe",
    architecture="Qwen3MoeForCausalLM",
    qk_norm=True,
    read=_read,
    write=_write,
    uses_window=_uses_window,
    gguf="qwen3moe",
)
