"""MiMo-V2-Flash (text): values narrower than keys; sinks and more kv heads where layers slide."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.core.rope import Rope
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.hf_fields import integer, read_head_dim
from jaxspec.targets.families.hf_rope import describe_rope, differs, read_rope
from jaxspec.targets.families.layer_types import FULL, SLIDING, read_types, write_windows
from jaxspec.targets.families.shipped.glm4_moe import list_sigmoid, read_sigmoid, write_sigmoid

_HEAD_DIM, _SHARE, _THETAS = 192, 0.334, {FULL: 5e6, SLIDING: 1e4}
# Entries of published files that may only say what every model of the family does.
_FIXED: dict[str, Any] = {
    "add_swa_attention_sink_bias": True,
    "add_full_attention_sink_bias": False,
    "attention_projection_layout": "split",
    "scoring_func": "sigmoid",
    "n_shared_experts": 0,
}


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    same = {f"swa_{name}": name for name in ("num_attention_heads", "head_dim", "v_head_dim")}
    fixed = _FIXED | {name: hf[other] for name, other in same.items() if other in hf}
    for name, value in fixed.items():
        if hf.get(name, value) != value:
            raise ValueError(f"config.json: {name} {hf[name]!r} is not supported for MiMo-V2-Flash")
    return {
        "rope": _read_rope(hf, FULL),
        "norm_eps": float(hf.get("rms_norm_eps") or hf.get("layernorm_epsilon") or 1e-5),
        "v_head_dim": integer(hf, "v_head_dim", 128),
        "v_scale": float(hf.get("attention_value_scale") or 1.0),
        "moe": read_sigmoid(hf, 0),
        "qkv_bias": bool(hf.get("attention_bias", False)),
        "o_bias": False,
    }


def _read_rope(hf: dict[str, Any], kind: str) -> Rope:
    """Read the rotation of layers of a type; published files state its base beside the others."""
    if differs(hf):
        rope = read_rope(hf, read_head_dim(hf, _HEAD_DIM), kind, _THETAS[kind])
        stated = hf["rope_parameters"].get(kind) or {}
        return rope if "partial_rotary_factor" in stated else _turn(rope, _SHARE)
    names = {FULL: "rope_theta", SLIDING: "swa_rope_theta"}
    share = float(hf.get("partial_rotary_factor", _SHARE))
    return _turn(Rope(float(hf.get(names[kind], _THETAS[kind]))), share)


def _turn(rope: Rope, share: float) -> Rope:
    return dataclasses.replace(rope, share=share)


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    count = integer(hf, "num_hidden_layers")
    full = [i == 0 or (i + 1) % 6 == 0 for i in range(count)]
    if hf.get("hybrid_layer_pattern"):
        full = [not slides for slides in hf["hybrid_layer_pattern"]]
    types = read_types(hf, [FULL if one else SLIDING for one in full])
    sparse = [bool(one) for one in hf.get("moe_layer_freq") or [0] + [1] * (count - 1)]
    if hf.get("mlp_layer_types"):
        sparse = [kind == "sparse" for kind in hf["mlp_layer_types"]]
    if len(sparse) != count:
        raise ValueError(
            f"config.json: {len(sparse)} of {count} layers are said to be sparse or not"
        )
    # The published number counts the positions before a row, that of transformers its own too.
    window = integer(hf, "sliding_window", 129)
    if hf.get("sliding_window_size") is not None:
        window = integer(hf, "sliding_window_size") + 1
    sliding = {
        "window": window,
        "num_kv_heads": integer(
            hf, "swa_num_key_value_heads", 2 * integer(hf, "num_key_value_heads")
        ),
        "sinks": True,
        "rope": _read_rope(hf, SLIDING),
    }
    return [
        (sliding if kind == SLIDING else {}) | ({} if experts else {"moe": None})
        for kind, experts in zip(types, sparse, strict=True)
    ]


def _write(config: TargetConfig) -> dict[str, Any]:
    layers = config.list_layers()
    sliding = next((layer for layer in layers if layer.window), None)
    ropes = {FULL: config.rope, SLIDING: sliding.rope if sliding else Rope(_THETAS[SLIDING])}
    heads = sliding.num_kv_heads if sliding else 2 * config.num_kv_heads
    return {
        "v_head_dim": config.value_dim,
        "attention_value_scale": config.v_scale,
        "swa_num_key_value_heads": heads,
        "layer_types": [SLIDING if layer.window else FULL for layer in layers],
        "rope_scaling": None,
        "rope_parameters": {
            kind: describe_rope(rope) | {"partial_rotary_factor": rope.share}
            for kind, rope in ropes.items()
        },
    } | (write_windows(config) | write_sigmoid(config))


MIMO_V2_FLASH = TargetFamily(
    name="mimo_v2_flash",
    architecture="MiMoV2FlashForCausalLM",
    head_dim=_HEAD_DIM,
    read=_read,
    read_layers=_read_layers,
    write=_write,
    weight_name=lambda name: name.replace("self_attn.sinks", "self_attn.attention_sink_bias"),
    list_sparse=list_sigmoid,
    unused=("model.mtp.",),
    defaults={"attention_value_scale": 0.707},
)
