"""Gemma 4 (text): full layers with wider heads, experts beside a dense feed-forward, and in the
small models inputs per layer and layers that read another layer's keys and values.
"""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import LayerConfig, MoEConfig, TargetConfig
from jaxspec.core.rope import ProportionalScaling, Rope
from jaxspec.io.weights.weight_map import Leaf, vector
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.hf_fields import integer, read_head_dim
from jaxspec.targets.families.hf_rope import describe_rope, read_rope
from jaxspec.targets.families.layer_types import (
    FULL,
    SLIDING,
    read_types,
    read_windows,
    write_windows,
)
from jaxspec.targets.layer_leaves import list_mlp

_HEAD_DIM, _FULL_HEAD_DIM, _INPUTS, _VOCABULARY = 256, 512, 256, 262_144
_ROPES = {FULL: Rope(1e6, ProportionalScaling(0.25)), SLIDING: Rope(1e4)}
# What `per_layer_config` may change, as fields of `LayerConfig`.
_CHANGES = {"head_dim": "head_dim", "num_key_value_heads": "num_kv_heads"}


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    if hf.get("use_bidirectional_attention") == "all":
        raise ValueError("config.json: use_bidirectional_attention 'all' is not supported")
    inputs = int(hf.get("hidden_size_per_layer_input", _INPUTS))
    rows = integer(hf, "vocab_size_per_layer_input", _VOCABULARY) if inputs else 0
    if inputs and rows < integer(hf, "vocab_size"):
        raise ValueError(
            f"config.json: vocab_size_per_layer_input {rows} is less than vocab_size "
            f"{hf['vocab_size']}"
        )
    return {
        "rope": _read_rope(hf, FULL, read_head_dim(hf, _HEAD_DIM)),
        "activation": "gelu_tanh",
        "score_scale": 1.0,
        "norms": "sandwich",
        "norm_wide": True,
        "v_norm": True,
        "output_scale": True,
        "moe": _read_experts(hf) if hf.get("enable_moe_block") else None,
        "per_layer_size": inputs,
        "per_layer_vocab_size": rows,
        "embedding_scale": integer(hf, "hidden_size") ** 0.5,
        "softcap": hf.get("final_logit_softcapping"),
        "tie_embeddings": bool(hf.get("tie_word_embeddings", True)),
    }


def _read_experts(hf: dict[str, Any]) -> MoEConfig:
    return MoEConfig(
        num_experts=integer(hf, "num_experts"),
        experts_per_token=integer(hf, "top_k_experts"),
        expert_ffn_size=integer(hf, "moe_intermediate_size"),
        beside_dense=True,
    )


def _read_rope(hf: dict[str, Any], kind: str, head_dim: int) -> Rope:
    stated = (hf.get("rope_parameters") or {}).get(kind)
    return _ROPES[kind] if stated is None else read_rope(hf, head_dim, kind, _ROPES[kind].theta)


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    count = integer(hf, "num_hidden_layers")
    types = read_types(hf, [SLIDING if (i + 1) % 6 else FULL for i in range(count)])
    types[-1] = FULL  # as transformers does, whatever the file says
    windows = read_windows({"sliding_window": 512} | hf, types) or [{"window": None}] * count
    sizes, sources = _read_sizes(hf, types), _read_sources(hf, types)
    found = []
    for i, kind in enumerate(types):
        head_dim = sizes[i].get("head_dim", read_head_dim(hf, _HEAD_DIM))
        own = windows[i] | sizes[i] | {"rope": _read_rope(hf, kind, head_dim)}
        if sources[i] is not None:
            if sizes[i] != sizes[sources[i]]:
                raise ValueError(
                    f"config.json: layer {i} reads the keys of layer {sources[i]}, and "
                    "per_layer_config gives them other heads"
                )
            own["kv_source"] = sources[i]
            if hf.get("use_double_wide_mlp"):
                own["ffn_size"] = 2 * integer(hf, "intermediate_size")
        elif hf.get("attention_k_eq_v") and kind == FULL:
            own["k_is_v"] = True
        found.append(own)
    return found


def _read_sizes(hf: dict[str, Any], types: list[str]) -> list[dict[str, int]]:
    """Read by how much the heads of each layer differ from the first entries.

    Files of transformers 5 say so by layer, others by type of layer.
    """
    stated = hf.get("per_layer_config")
    if stated is None:
        full = {"head_dim": integer(hf, "global_head_dim", _FULL_HEAD_DIM)}
        if hf.get("attention_k_eq_v") and hf.get("num_global_key_value_heads"):
            full["num_kv_heads"] = integer(hf, "num_global_key_value_heads")
        return [full if kind == FULL else {} for kind in types]
    unknown = sorted({name for one in stated.values() for name in one} - set(_CHANGES))
    if unknown:
        raise ValueError(
            f"config.json: {unknown[0]} in per_layer_config is not supported (supported: "
            f"{', '.join(_CHANGES)})"
        )
    numbered = {int(number): one for number, one in stated.items()}  # transformers writes "05"
    changes = [numbered.get(i, {}) for i in range(len(types))]
    return [{_CHANGES[name]: integer(one, name) for name in one} for one in changes]


def _read_sources(hf: dict[str, Any], types: list[str]) -> list[int | None]:
    """Read whose keys and values each layer reads: the last layers those of the last one of their
    type before them.
    """
    own = len(types) - int(hf.get("num_kv_shared_layers") or 0)
    last = {kind: i for i, kind in enumerate(types[:own])}
    if set(types) != set(last):
        raise ValueError(
            f"config.json: num_kv_shared_layers {len(types) - own} leaves no layer whose keys and "
            "values the others can read"
        )
    return [None if i < own else last[kind] for i, kind in enumerate(types)]


def _write(config: TargetConfig) -> dict[str, Any]:
    layers, moe = config.list_layers(), config.moe
    sliding = next((layer.rope for layer in layers if layer.window), _ROPES[SLIDING])
    full = next(layer.rope for layer in reversed(layers) if not layer.window)
    sources = [layer.kv_source is not None for layer in layers]
    sizes = {
        str(i): {name: getattr(layer, field) for name, field in _CHANGES.items()}
        for i, layer in enumerate(layers)
    }
    experts = {}
    if moe is not None:
        experts = {
            "num_experts": moe.num_experts,
            "top_k_experts": moe.experts_per_token,
            "moe_intermediate_size": moe.expert_ffn_size,
        }
    return {
        "layer_types": [SLIDING if layer.window else FULL for layer in layers],
        "hidden_activation": "gelu_pytorch_tanh",
        "final_logit_softcapping": config.softcap,
        "rope_scaling": None,
        "rope_parameters": {FULL: describe_rope(full), SLIDING: describe_rope(sliding)},
        "per_layer_config": sizes,
        "attention_k_eq_v": any(layer.k_is_v for layer in layers),
        "num_kv_shared_layers": sum(sources),
        "use_double_wide_mlp": layers[-1].ffn_size != config.ffn_size,
        "hidden_size_per_layer_input": config.per_layer_size,
        "vocab_size_per_layer_input": config.per_layer_vocab_size or config.vocab_size,
        "enable_moe_block": moe is not None,
    } | (experts | write_windows(config))


def _list_sparse(config: LayerConfig, index: int) -> list[Leaf]:
    """List the leaves of a dense feed-forward and the experts beside it, which are stacked."""
    moe, width, ffn = config.moe, config.hidden_size, config.moe.expert_ffn_size
    layer, names, count = f"layers_{index}", f"model.layers.{index}", moe.num_experts

    def one(key: str, name: str, *shape: int, transpose: bool = False) -> Leaf:
        path = layer, "experts", key
        return Leaf(path, ((f"{names}.{name}",),), (shape,), transpose=transpose)

    norms = {
        "dense_post_norm": "post_feedforward_layernorm_1",
        "experts_norm": "pre_feedforward_layernorm_2",
        "experts_post_norm": "post_feedforward_layernorm_2",
    }
    return [
        *list_mlp(config, index),
        one("router", "router.proj.weight", count, width, transpose=True),
        one("router_scale", "router.scale", width),
        one("expert_scale", "router.per_expert_scale", count),
        one("gate_up", "experts.gate_up_proj", count, 2 * ffn, width, transpose=True),
        one("down", "experts.down_proj", count, width, ffn, transpose=True),
        *(vector((layer, key), f"{names}.{name}", width) for key, name in norms.items()),
    ]


GEMMA4 = TargetFamily(
    name="gemma4_text",
    architecture="Gemma4ForCausalLM",
    qk_norm=True,
    head_dim=_HEAD_DIM,
    read=_read,
    read_layers=_read_layers,
    write=_write,
    list_sparse=_list_sparse,
    defaults={"num_key_value_heads": 4},
)
