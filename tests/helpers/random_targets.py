"""Tiny random models of every family, made by transformers' PyTorch classes."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

VOCAB = 97


def draw_config(family: str, seed: int) -> dict[str, Any]:
    """Draw a config.json of a family: sizes, windows, ropes and biases."""
    r = random.Random(f"{family}-{seed}")
    kv, group, layers = r.choice([1, 2]), r.choice([1, 2, 3]), r.choice([2, 3, 4, 6])
    hf = {
        "model_type": family,
        "vocab_size": VOCAB,
        "hidden_size": r.choice([24, 32, 48]),
        "intermediate_size": r.choice([16, 40]),
        "num_hidden_layers": layers,
        "num_attention_heads": kv * group,
        "num_key_value_heads": kv,
        "head_dim": r.choice([8, 12, 16]),
        "max_position_embeddings": 512,
        "rms_norm_eps": r.choice([1e-5, 1e-6]),
        "tie_word_embeddings": r.random() < 0.5,
        "bos_token_id": None,
        "eos_token_id": 1,
        "pad_token_id": 0,
        "rope_parameters": _draw_rope(r),
    }
    return hf | _OWN.get(family, lambda r, hf: {})(r, hf)


_ROPES = ("default", "yarn", "linear", "llama3")


def _draw_rope(r: random.Random, kinds: tuple[str, ...] = _ROPES) -> dict:
    kind, theta = r.choice(kinds), r.choice([1e4, 5e5])
    rope: dict[str, Any] = {"rope_type": kind, "rope_theta": theta}
    if kind != "default":
        rope["factor"] = r.choice([2.0, 4.0])
    if kind == "llama3":
        rope |= {"low_freq_factor": 1.0, "high_freq_factor": r.choice([2.0, 4.0])}
        rope["original_max_position_embeddings"] = r.choice([32, 64])
    if kind == "yarn":
        rope["original_max_position_embeddings"] = r.choice([32, 64])
        rope |= r.choice([{}, {"beta_fast": 16.0, "beta_slow": 2.0}, {"truncate": False}])
    return rope


def _biased(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    return {"attention_bias": r.random() < 0.5}


def _qwen3(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    return _biased(r, hf) | (
        _types(r, hf) | {"use_sliding_window": True} if r.random() < 0.5 else {}
    )


def _types(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    kinds = ["full_attention", "sliding_attention"]
    types = [r.choice(kinds) for _ in range(hf["num_hidden_layers"])]
    return {"layer_types": types, "sliding_window": r.choice([5, 9, 16])}


def _by_type(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    ropes = {"full_attention": _draw_rope(r), "sliding_attention": _draw_rope(r, ("default",))}
    return _types(r, hf) | {"rope_parameters": ropes}


def _qwen2(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    sizes = {"head_dim": None, "hidden_size": 8 * hf["num_attention_heads"]}
    slides = r.random() < 0.6
    window = {"use_sliding_window": slides, "sliding_window": 7, "max_window_layers": 1}
    return sizes | (window if slides else {})


def _mistral(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    return {"sliding_window": r.choice([None, 6, 20])}


def _ministral3(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, "factor": 4.0, "mscale": 1.0}
    rope |= {"mscale_all_dim": 1.0, "original_max_position_embeddings": 16, "beta_fast": 32.0}
    return _mistral(r, hf) | {
        "rope_parameters": rope | {"beta_slow": 1.0, "llama_4_scaling_beta": 0.1}
    }


def _phi3(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    heads, dim = hf["num_attention_heads"], r.choice([8, 16])
    share, longest = r.choice([1.0, 0.75]), hf["max_position_embeddings"]
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": 1e4}
    if r.random() < 0.6:
        pairs = int(dim * share) // 2
        rope = {"rope_type": "longrope", "rope_theta": 1e4}
        rope |= {"short_factor": [1 + 0.1 * r.random() for _ in range(pairs)]}
        rope |= {"long_factor": [2 + r.random() for _ in range(pairs)]}
        rope["original_max_position_embeddings"] = longest // 2
    own = {"head_dim": None, "hidden_size": dim * heads, "sliding_window": r.choice([None, 9])}
    own["rope_parameters"] = rope | {"partial_rotary_factor": share}
    return own | {"original_max_position_embeddings": longest // 2}


def _olmo(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    own = {"head_dim": None, "hidden_size": 8 * hf["num_attention_heads"]} | _biased(r, hf)
    return own | (_by_type(r, hf) if hf["model_type"] == "olmo3" else {})


def _smollm3(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    layers = hf["num_hidden_layers"]
    own = {"head_dim": None, "hidden_size": 8 * hf["num_attention_heads"]} | _biased(r, hf)
    return own | {"no_rope_layers": [r.choice([0, 1]) for _ in range(layers)]}


def _granite(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    own = {"head_dim": None, "hidden_size": 8 * hf["num_attention_heads"]}
    own |= {"embedding_multiplier": 4.0, "logits_scaling": 3.0} | _biased(r, hf)
    return own | {"residual_multiplier": 0.4, "attention_multiplier": 0.2}


def _gemma3(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    own = _by_type(r, hf)
    own |= {"hidden_activation": "gelu_pytorch_tanh", "query_pre_attn_scalar": r.choice([8, 24])}
    return own | {"tie_word_embeddings": True, "final_logit_softcapping": r.choice([None, 3.0])}


def _gemma4(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    kv, same, layers = hf["num_key_value_heads"], r.random() < 0.5, hf["num_hidden_layers"]
    own = _types(r, hf) | {"hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True}
    own["layer_types"][-1] = "full_attention"
    full = {"rope_type": "proportional", "rope_theta": 1e5, "partial_rotary_factor": 0.25}
    own["rope_parameters"] = {
        "full_attention": full,
        "sliding_attention": _draw_rope(r, ("default",)),
    }
    own |= {"global_head_dim": 16 if hf["head_dim"] == 8 else 32, "attention_k_eq_v": same}
    own |= {"num_global_key_value_heads": 1 if same and r.random() < 0.7 else kv}
    own |= {"final_logit_softcapping": r.choice([None, 3.0]), "hidden_size_per_layer_input": 0}
    if r.random() < 0.5:
        return own
    # transformers generates with shared keys and values only where there are inputs per layer.
    own |= {"hidden_size_per_layer_input": 6, "vocab_size_per_layer_input": VOCAB}
    shared, types = r.choice([0, layers // 2]), own["layer_types"]
    if set(types[: layers - shared]) == set(types):
        own |= {"num_kv_shared_layers": shared, "use_double_wide_mlp": r.random() < 0.5}
    return own


def _gemma4_moe(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    own = _gemma4(r, hf | {"model_type": "gemma4_text"}) | {"model_type": "gemma4_text"}
    own |= {"enable_moe_block": True, "num_experts": 6, "top_k_experts": r.choice([1, 3])}
    return own | {"moe_intermediate_size": 12}


def _gpt_oss(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    experts = r.choice([4, 6])
    own = _types(r, hf) | {"num_local_experts": experts, "num_experts_per_tok": 2}
    return own | {"attention_bias": True, "swiglu_limit": r.choice([1.0, 7.0])}


def _qwen3_moe(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    own = {"num_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 12}
    return own | {"norm_topk_prob": r.random() < 0.5, "decoder_sparse_step": r.choice([1, 2])}


def _glm4_moe(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    groups = r.choice([1, 2])
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    own = {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
    own |= {"n_group": groups, "topk_group": 1, "n_shared_experts": r.choice([1, 2])}
    own |= {"routed_scaling_factor": r.choice([1.0, 2.5]), "first_k_dense_replace": 1}
    own |= {"norm_topk_prob": r.random() < 0.7, "use_qk_norm": r.random() < 0.5}
    return own | {"attention_bias": r.random() < 0.5, "rope_parameters": rope, "head_dim": 8}


def _mimo(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    kv, layers, group = hf["num_key_value_heads"], hf["num_hidden_layers"], r.choice([1, 2])
    own = _types(r, hf) | {
        "num_attention_heads": 2 * kv * group,
        "v_head_dim": r.choice([4, 8, 20]),
    }
    ropes = {
        kind: {"rope_type": "default", "rope_theta": theta, "partial_rotary_factor": 0.5}
        for kind, theta in (("full_attention", 5e5), ("sliding_attention", 1e4))
    }
    experts = [r.choice(["dense", "sparse"]) for _ in range(layers)]
    own |= {"n_routed_experts": 8, "num_experts_per_tok": 3, "moe_intermediate_size": 12}
    own |= {"n_group": r.choice([1, 2]), "topk_group": 1, "attention_bias": r.random() < 0.5}
    own |= {"attention_value_scale": r.choice([None, 0.707]), "tie_word_embeddings": False}
    return own | {"rope_parameters": ropes, "mlp_layer_types": experts}


def _qwen3_5(r: random.Random, hf: dict[str, Any]) -> dict[str, Any]:
    keys, every = r.choice([1, 2, 3]), r.choice([2, 3, 4])
    layers = every + r.choice([0, 1, every])
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.25}
    own = {"num_hidden_layers": layers, "full_attention_interval": every, "head_dim": 16}
    own |= {"linear_num_key_heads": keys, "linear_num_value_heads": keys * r.choice([1, 2, 3])}
    own |= {"linear_key_head_dim": r.choice([4, 8, 12]), "linear_value_head_dim": r.choice([6, 16])}
    return own | {"linear_conv_kernel_dim": r.choice([2, 3, 4]), "rope_parameters": rope}


_OWN = {
    "llama": _biased,
    "qwen3": _qwen3,
    "qwen2": _qwen2,
    "mistral": _mistral,
    "ministral": _types,
    "ministral3": _ministral3,
    "phi3": _phi3,
    "olmo2": _olmo,
    "olmo3": _olmo,
    "smollm3": _smollm3,
    "granite": _granite,
    "gemma3_text": _gemma3,
    "gemma4_text": _gemma4,
    "gemma4_moe": _gemma4_moe,
    "gpt_oss": _gpt_oss,
    "qwen3_moe": _qwen3_moe,
    "glm4_moe": _glm4_moe,
    "mimo_v2_flash": _mimo,
    "qwen3_5_text": _qwen3_5,
}
# Models that store the weights of norms as w - 1, but for those of gated delta nets.
_CENTRED = ("gemma3_text", "qwen3_5_text")
FAMILIES = tuple(_OWN)


def build(hf: dict[str, Any], seed: int) -> Any:
    """Build a PyTorch model with random weights, norms, biases and sinks."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    entries = {name: value for name, value in hf.items() if name != "model_type"}
    if entries.get("head_dim", 0) is None:
        del entries["head_dim"]
    config = AutoConfig.for_model(hf["model_type"], **entries)
    config._experts_implementation = "eager"
    torch.manual_seed(seed)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="eager").float().eval()
    with torch.no_grad():
        for name, tensor in [*model.named_parameters(), *model.named_buffers()]:
            if "inv_freq" in name or not tensor.is_floating_point() or not tensor.ndim:
                continue
            plain = hf["model_type"] not in _CENTRED or "linear_attn" in name
            centre = 1.0 if "norm" in name and plain else 0.0
            if hf["model_type"] == "gemma4_text":
                # Factors of whole rows, and scores that are not divided by a head's width.
                centre = 1.0 if "scal" in name else 0.5 * centre if "self_attn" in name else centre
            if "A_log" in name:  # some heads forget in a token, some in dozens
                centre = -1.5
            wide = 0.3 if tensor.ndim == 1 else 1.5 * tensor.shape[-1] ** -0.5
            tensor.copy_(centre + wide * torch.randn_like(tensor))
    return model


def save(hf: dict[str, Any], seed: int, folder: Path, storage: str = "float32") -> Any:
    """Build a model and save it as transformers does, in this dtype; return what it loads again.

    Every other model's config.json has RoPE in the spelling of transformers 4, where it has one.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    build(hf, seed).to(getattr(torch, storage)).save_pretrained(folder)
    if seed % 2:
        _spell_as_4(folder / "config.json")
    config = AutoConfig.from_pretrained(folder)
    config._experts_implementation = "eager"
    how = {"dtype": torch.float32, "attn_implementation": "eager"}
    return AutoModelForCausalLM.from_pretrained(folder, config=config, **how).eval()


def _spell_as_4(path: Path) -> None:
    """Write `rope_theta` and `rope_scaling` instead of `rope_parameters`."""
    hf = json.loads(path.read_text())
    rope = hf.get("rope_parameters") or {}
    if "rope_theta" not in rope or "llama_4_scaling_beta" in rope:
        return
    del hf["rope_parameters"]
    hf |= {name: rope.pop(name) for name in ("rope_theta", "partial_rotary_factor") if name in rope}
    hf["rope_scaling"] = None if rope["rope_type"] == "default" else rope
    path.write_text(json.dumps(hf))
