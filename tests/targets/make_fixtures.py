"""Writes tests/golden/targets: tiny random models saved by transformers, and what its PyTorch code
computes with them.

    python tests/targets/make_fixtures.py [NAME ...]      # needs torch and transformers

Each folder is an ordinary `save_pretrained` directory plus expected.npz: `tokens`, `positions`
int64 [B, T], `logits` float32 [B, T, V], `features` float32 [L, B, T, E], layer i being what
decoder layer i returns (`hidden_states[L]` of transformers would be past the final norm, hence the
hooks).
"""

from __future__ import annotations

import sys
import zlib
from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "targets"
BATCH, ROWS = 2, 12
# So many models took their seed from their place in the alphabet.
_SORTED = 6
_COMMON = {
    "vocab_size": 48,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 1024,
    "rms_norm_eps": 1e-6,
    "bos_token_id": None,
    "eos_token_id": 47,
}
_QWEN3 = {"head_dim": 8, "rope_parameters": {"rope_type": "default", "rope_theta": 1e6}}
_MOE = {**_QWEN3, "num_experts": 5, "num_experts_per_tok": 2, "moe_intermediate_size": 8}
_LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 5e5,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

_YARN = {
    "rope_type": "yarn",
    "rope_theta": 1e4,
    "factor": 4.0,
    "original_max_position_embeddings": 64,
}
_LONG = {
    "rope_type": "longrope",
    "rope_theta": 1e4,
    "short_factor": [1.0, 1.5, 2.0],
    "long_factor": [2.0, 4.0, 5.0],
    "original_max_position_embeddings": 1024,
    "partial_rotary_factor": 0.75,
}
_PLAIN = {"rope_type": "default", "rope_theta": 1e4}
_SLIDE = ["sliding_attention", "full_attention", "sliding_attention"]
_BY_TYPE = {"full_attention": _YARN, "sliding_attention": _PLAIN}
_WINDOW = {"sliding_window": 5, "layer_types": _SLIDE}
_GLM = {
    "n_routed_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 8,
    "n_group": 2,
    "topk_group": 1,
    "routed_scaling_factor": 1.5,
    "first_k_dense_replace": 1,
    "attention_bias": True,
    "use_qk_norm": True,
    "head_dim": 8,
    "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5},
}
_GLM_ONLY = "first_k_dense_replace", "use_qk_norm"
_GEMMA4 = {
    "head_dim": 8,
    "global_head_dim": 16,
    "sliding_window": 5,
    "rope_parameters": {
        "full_attention": {**_PLAIN, "rope_type": "proportional", "partial_rotary_factor": 0.25},
        "sliding_attention": _PLAIN,
    },
}
_DELTA = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention"],
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 6,
    "linear_value_head_dim": 8,
    "head_dim": 8,
    "rope_parameters": {**_PLAIN, "partial_rotary_factor": 0.5},
}

# Name: (model type, settings, stored dtype, sharded).
MODELS = {
    "qwen3": ("qwen3", _QWEN3, "float32", True),
    "qwen3_tied": (
        "qwen3",
        {**_QWEN3, "tie_word_embeddings": True, "attention_bias": True},
        "bfloat16",
        False,
    ),
    "llama": (
        "llama",
        {"rope_parameters": {"rope_type": "default", "rope_theta": 1e4}},
        "float16",
        False,
    ),
    "llama_scaled": (
        "llama",
        {"head_dim": 16, "tie_word_embeddings": True, "rope_parameters": _LLAMA3},
        "float32",
        False,
    ),
    "qwen3_moe": ("qwen3_moe", {**_MOE, "norm_topk_prob": True}, "bfloat16", False),
    "qwen3_moe_mixed": (
        "qwen3_moe",
        {**_MOE, "norm_topk_prob": False, "mlp_only_layers": [1]},
        "float32",
        True,
    ),
    "qwen2": (
        "qwen2",
        {"use_sliding_window": True, **_WINDOW, "rope_parameters": _YARN},
        "float32",
        False,
    ),
    "phi3": (
        "phi3",
        {
            "hidden_size": 32,
            "sliding_window": 7,
            "max_position_embeddings": 4096,
            "original_max_position_embeddings": 1024,
            "rope_parameters": _LONG,
            "num_hidden_layers": 2,
            "pad_token_id": 0,
        },
        "float32",
        False,
    ),
    "olmo3": ("olmo3", {**_WINDOW, "rope_parameters": _BY_TYPE}, "float32", False),
    "smollm3": ("smollm3", {"no_rope_layers": [1, 0, 1], "pad_token_id": 0}, "float32", False),
    "granite": (
        "granite",
        {
            "embedding_multiplier": 3.0,
            "attention_multiplier": 0.3,
            "residual_multiplier": 0.5,
            "logits_scaling": 2.0,
        },
        "float32",
        False,
    ),
    "gemma3": (
        "gemma3_text",
        {
            **_WINDOW,
            "head_dim": 8,
            "query_pre_attn_scalar": 12,
            "rope_parameters": {
                "full_attention": {**_PLAIN, "rope_type": "linear", "factor": 8.0},
                "sliding_attention": _PLAIN,
            },
            "final_logit_softcapping": 3.0,
        },
        "bfloat16",
        False,
    ),
    "gpt_oss": (
        "gpt_oss",
        {
            **_WINDOW,
            "head_dim": 8,
            "num_local_experts": 4,
            "num_experts_per_tok": 2,
            "swiglu_limit": 1.0,
            "rope_parameters": {**_YARN, "truncate": False},
        },
        "float32",
        False,
    ),
    "glm4_moe": ("glm4_moe", _GLM, "float32", False),
    "mimo_v2_flash": (
        "mimo_v2_flash",
        {
            **_WINDOW,
            **{name: value for name, value in _GLM.items() if name not in _GLM_ONLY},
            "head_dim": 12,
            "v_head_dim": 8,
            "mlp_layer_types": ["dense", "sparse", "sparse"],
            "rope_parameters": {
                kind: {**_PLAIN, "rope_theta": theta, "partial_rotary_factor": 0.334}
                for kind, theta in (("full_attention", 5e6), ("sliding_attention", 1e4))
            },
        },
        "float32",
        False,
    ),
    # The last two layers read the keys and values of the first two.
    "gemma4": (
        "gemma4_text",
        {
            **_GEMMA4,
            "num_hidden_layers": 4,
            "layer_types": [*_SLIDE[:2], *_SLIDE[:2]],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "hidden_size_per_layer_input": 4,
            "vocab_size_per_layer_input": 48,
            "final_logit_softcapping": 3.0,
        },
        "bfloat16",
        False,
    ),
    "gemma4_moe": (
        "gemma4_text",
        {
            **_GEMMA4,
            "layer_types": [*_SLIDE[:2], "full_attention"],
            "attention_k_eq_v": True,
            "num_global_key_value_heads": 1,
            "hidden_size_per_layer_input": 0,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 8,
        },
        "float32",
        False,
    ),
    "qwen3_5": ("qwen3_5_text", _DELTA, "float32", False),
}
# Models that store the weights of norms as w - 1, but for those of gated delta nets.
_CENTRED = ("gemma3_text", "qwen3_5_text")


def build(name: str):
    """The random PyTorch model called `name`, in float32 with values that its stored dtype can
    hold.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, settings, dtype, _ = MODELS[name]
    first = sorted(list(MODELS)[:_SORTED])
    torch.manual_seed(first.index(name) if name in first else zlib.crc32(name.encode()))
    model = (
        AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **_COMMON | settings))
        .float()
        .eval()
    )
    with torch.no_grad():
        stored = ("correction_bias", "layer_scalar")
        biases = [one for one in model.named_buffers() if one[0].endswith(stored)]
        for key, weight in [*model.named_parameters(), *biases]:
            # Logits of order 1 and norms that differ from 1, so that every factor of the forward
            # shows.
            plain = kind not in _CENTRED or "linear_attn" in key
            centre = 1.0 if "norm" in key and plain else 0.0
            centre = 1.0 if kind == "gemma4_text" and "scal" in key else centre
            weight.normal_(centre, 0.2)
            weight.copy_(weight.to(getattr(torch, dtype)).float())
    return model


def expected(model) -> dict[str, np.ndarray]:
    """What the PyTorch model computes on fixed random tokens; the second sequence stands at far
    positions.
    """
    import torch

    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(_COMMON["vocab_size"], (BATCH, ROWS), generator=generator)
    positions = torch.arange(ROWS) + torch.tensor([[0], [700]])
    outputs = []

    def keep(module, inputs, output):
        outputs.append((output[0] if isinstance(output, tuple) else output).numpy())

    hooks = [layer.register_forward_hook(keep) for layer in model.model.layers]
    with torch.no_grad():
        logits = model(tokens, position_ids=positions, use_cache=False).logits.numpy()
    for hook in hooks:
        hook.remove()
    return {
        "tokens": tokens.numpy(),
        "positions": positions.numpy(),
        "logits": logits,
        "features": np.stack(outputs),
    }


def main():
    import torch

    for name in sys.argv[1:] or MODELS:
        _, _, dtype, sharded = MODELS[name]
        model = build(name)
        arrays = expected(model)
        model.to(getattr(torch, dtype)).save_pretrained(
            GOLDEN / name, max_shard_size="20KB" if sharded else "1GB"
        )
        np.savez_compressed(GOLDEN / name / "expected.npz", **arrays)
        print(
            name,
            sorted(path.name for path in (GOLDEN / name).iterdir()),
            np.abs(arrays["logits"]).max(),
        )


if __name__ == "__main__":
    main()
