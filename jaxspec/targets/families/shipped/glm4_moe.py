"""GLM-4.5 and GLM-4.5-Air: sigmoid routers, a shared expert, and dense layers at the beginning."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import LayerConfig, MoEConfig, TargetConfig
from jaxspec.io.weights.weight_map import Leaf
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import Getter, GgufFamily, read_share
from jaxspec.targets.families.hf_fields import integer, read_first
from jaxspec.targets.layer_leaves import list_experts, list_gated


def read_sigmoid(hf: dict[str, Any], shared: int) -> MoEConfig:
    """Read experts behind a sigmoid router, `shared` of which every token uses."""
    expert = integer(hf, "moe_intermediate_size")
    return MoEConfig(
        num_experts=read_first(hf, "n_routed_experts", "num_local_experts"),
        experts_per_token=integer(hf, "num_experts_per_tok"),
        expert_ffn_size=expert,
        normalize_weights=bool(hf.get("norm_topk_prob", True)),
        score="sigmoid",
        weight_scale=float(hf.get("routed_scaling_factor") or 1.0),
        groups=integer(hf, "n_group", 1),
        kept_groups=integer(hf, "topk_group", 1),
        shared_ffn_size=expert * shared,
    )


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    return {
        "moe": read_sigmoid(hf, hf.get("n_shared_experts", 1) or 0),
        "qk_norm": bool(hf.get("use_qk_norm", False)),
        "qkv_bias": bool(hf.get("attention_bias", False)),
        "o_bias": False,
    }


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    """Read which layers are dense: by type, or as many as the file says at the beginning."""
    count, dense = integer(hf, "num_hidden_layers"), hf.get("first_k_dense_replace", 1)
    types = hf.get("mlp_layer_types") or ["dense" if i < dense else "sparse" for i in range(count)]
    if len(types) != count:
        raise ValueError(f"config.json: mlp_layer_types lists {len(types)} of {count} layers")
    return [{"moe": None} if kind == "dense" else {} for kind in types]


def write_sigmoid(config: TargetConfig) -> dict[str, Any]:
    """Write the entries that `read_sigmoid` reads, and which layers are dense."""
    moe = config.moe
    dense = [layer.moe is None for layer in config.list_layers()]
    return {
        "n_routed_experts": moe.num_experts,
        "num_experts_per_tok": moe.experts_per_token,
        "moe_intermediate_size": moe.expert_ffn_size,
        "norm_topk_prob": moe.normalize_weights,
        "routed_scaling_factor": moe.weight_scale,
        "n_group": moe.groups,
        "topk_group": moe.kept_groups,
        "first_k_dense_replace": dense.index(False) if False in dense else len(dense),
        "mlp_layer_types": ["dense" if one else "sparse" for one in dense],
    }


def _write(config: TargetConfig) -> dict[str, Any]:
    shared = config.moe.shared_ffn_size // config.moe.expert_ffn_size
    own = {"n_shared_experts": shared, "use_qk_norm": config.qk_norm}
    return write_sigmoid(config) | own


def list_sigmoid(config: LayerConfig, index: int) -> list[Leaf]:
    """List the leaves of a layer's experts, their router and its correction, which are float32."""
    path, names = (f"layers_{index}", "mlp"), f"model.layers.{index}.mlp"
    router, *experts = list_experts(config, index)
    bias = (f"{names}.gate.e_score_correction_bias",)
    leaves = [
        router._replace(wide=True),
        Leaf((*path, "correction"), (bias,), ((config.moe.num_experts,),), wide=True),
        *experts,
    ]
    if config.moe.shared_ffn_size:
        size = config.moe.shared_ffn_size
        shared = f"{names}.shared_experts"
        leaves += list_gated((*path, "shared"), shared, config.hidden_size, size)
    return leaves


_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "exp_probs_b.bias": "mlp.gate.e_score_correction_bias",
} | {f"ffn_{part}_shexp": f"mlp.shared_experts.{part}_proj" for part in ("gate", "up", "down")}


def _read_gguf(get: Getter) -> dict[str, Any]:
    return {
        "n_routed_experts": get("expert_count"),
        "num_experts_per_tok": get("expert_used_count"),
        "n_shared_experts": get("expert_shared_count", 0),
        "moe_intermediate_size": get("expert_feed_forward_length"),
        "norm_topk_prob": bool(get("expert_weights_norm", True)),
        "routed_scaling_factor": get("expert_weights_scale", 1.0),
        "n_group": get("expert_group_count", 1),
        "topk_group": get("expert_group_used_count", 1),
        "first_k_dense_replace": get("leading_dense_block_count", 0),
    } | read_share(get, get("attention.key_length"))


GLM4_MOE = TargetFamily(
    name="glm4_moe",
    architecture="Glm4MoeForCausalLM",
    defaults={"num_key_value_heads": 8, "rms_norm_eps": 1e-5, "partial_rotary_factor": 0.5},
    read=_read,
    read_layers=_read_layers,
    write=_write,
    list_sparse=list_sigmoid,
    gguf=GgufFamily("glm4moe", layers=_NAMES, read=_read_gguf),
    further_layers=True,
)
