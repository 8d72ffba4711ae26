"""Writes tests/golden/targets: tiny random models saved by transformers, and what its PyTorch code
computes with them.

    python tests/targets/make_fixtures.py      # needs torch and transformers

Each folder is an ordinary `save_pretrained` directory plus expected.npz: `tokens`, `positions`
int64 [B, T], `logits` float32 [B, T, V], `features` float32 [L, B, T, E], layer i being what
decoder layer i returns (`hidden_states[L]` of transformers would be past the final norm, hence the
hooks).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "targets"
BATCH, ROWS = 2, 12
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
}


def build(name: str):
    """The random PyTorch model called `name`, in float32 with values that its stored dtype can
    hold.
    """
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    kind, settings, dtype, _ = MODELS[name]
    torch.manual_seed(sorted(MODELS).index(name))
    model = (
        AutoModelForCausalLM.from_config(AutoConfig.for_model(kind, **_COMMON, **settings))
        .float()
        .eval()
    )
    with torch.no_grad():
        for key, weight in model.named_parameters():
            # Logits of order 1 and norms that differ from 1, so that every factor of the forward
            # shows.
            weight.normal_(1.0 if "norm" in key else 0.0, 0.2)
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

    for name, (_, _, dtype, sharded) in MODELS.items():
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
