"""Write the tiny golden models as GGUF files, as llama.cpp's converter would.

Names of tensors come from the `gguf` package's own map.
"""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
from golden_data import SHIPPED

from jaxspec.io.files.safetensors_files import WeightFiles

MODELS = SHIPPED / "targets"
_ARCHITECTURES = {
    "llama": "llama",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "gemma3_text": "gemma3",
    "gpt_oss": "gpt-oss",
    "glm4_moe": "glm4moe",
} | {name: name for name in ("qwen2", "phi3", "smollm3", "granite")}
_PERMUTED = ("llama", "smollm3", "granite")
_FACTORS = {
    "embedding_scale": "embedding_multiplier",
    "attention.scale": "attention_multiplier",
    "residual_scale": "residual_multiplier",
    "logit_scale": "logits_scaling",
}


def write_gguf(
    name: str, path: Path, kind: str = "F32", tokens: list[str] | None = None, **entries
) -> None:
    """Write the golden model `name`, with matrices stored as block type `kind`.

    Args:
      tokens: vocabulary of a byte-level tokenizer, the first of them its end; None: the file has no
        tokenizer.
      entries: metadata to replace or, with None, to leave out; those without a dot are the
        tokenizer's.
    """
    config = json.loads((MODELS / name / "config.json").read_text())
    architecture = _ARCHITECTURES[config["model_type"]]
    writer = gguf.GGUFWriter(path, entries.pop("general.architecture", architecture))
    vocabulary = {} if tokens is None else describe_tokenizer(tokens)
    named = {one if "." in one else f"tokenizer.ggml.{one}": entries[one] for one in entries}
    metadata = describe(config, architecture) | vocabulary | named
    adders = {
        bool: writer.add_bool,
        int: writer.add_uint32,
        float: writer.add_float32,
        str: writer.add_string,
        list: writer.add_array,
    }
    for key, value in metadata.items():
        if value is not None:
            adders[type(value)](key, value)
    for tensor, array in stored_tensors(name, config, architecture).items():
        block = gguf.GGMLQuantizationType[kind if array.ndim > 1 else "F32"]
        writer.add_tensor(tensor, gguf.quants.quantize(array, block), raw_dtype=block)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def describe_tokenizer(tokens: list[str]) -> dict:
    """Return the metadata of a byte-level vocabulary; its first token is the end of text."""
    entries = {
        "model": "gpt2",
        "pre": "smollm",
        "tokens": tokens,
        "token_type": [3] + [1] * (len(tokens) - 1),
        "eos_token_id": 0,
    }
    return {f"tokenizer.ggml.{name}": value for name, value in entries.items()}


def describe(config: dict, architecture: str) -> dict:
    """Return the metadata of a config.json."""
    rope = config.get("rope_parameters") or {}
    entries = {
        "block_count": config["num_hidden_layers"],
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
        "attention.head_count_kv": config["num_key_value_heads"],
        "attention.key_length": config.get("head_dim")
        or config["hidden_size"] // config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(
            rope.get("full_attention", rope).get("rope_theta") or config["rope_theta"]
        ),
    }
    if architecture == "granite":
        entries |= {name: float(config[theirs]) for name, theirs in _FACTORS.items()}
    if architecture == "gemma3":
        scaling = {"type": "linear", "factor": rope["full_attention"]["factor"]}
        entries |= {f"rope.scaling.{name}": value for name, value in scaling.items()}
    if architecture == "phi3":
        turned = int(entries.pop("attention.key_length") * rope["partial_rotary_factor"])
        original = rope["original_max_position_embeddings"]
        entries |= {"rope.dimension_count": turned}
        entries |= {"rope.scaling.original_context_length": original}
    if architecture in ("gemma3", "phi3"):
        entries["attention.sliding_window"] = config["sliding_window"]
    if architecture == "qwen3moe":
        entries |= {
            "expert_count": config.get("num_experts") or config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
        }
    if architecture == "gpt-oss":
        entries |= {
            "attention.sliding_window": config["sliding_window"],
            "expert_count": config["num_local_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_feed_forward_length": config["intermediate_size"],
            "rope.scaling.type": "yarn",
            "rope.scaling.factor": rope["factor"],
            "rope.scaling.original_context_length": rope["original_max_position_embeddings"],
        }
    if architecture == "glm4moe":
        turned = int(config["head_dim"] * rope["partial_rotary_factor"])
        entries["block_count"] += config["num_nextn_predict_layers"]
        entries |= {
            "nextn_predict_layers": config["num_nextn_predict_layers"],
            "rope.dimension_count": turned,
            "leading_dense_block_count": config["first_k_dense_replace"],
            "expert_count": config["n_routed_experts"],
            "expert_used_count": config["num_experts_per_tok"],
            "expert_shared_count": config["n_shared_experts"],
            "expert_feed_forward_length": config["moe_intermediate_size"],
            "expert_weights_scale": config["routed_scaling_factor"],
            "expert_weights_norm": config["norm_topk_prob"],
            "expert_group_count": config["n_group"],
            "expert_group_used_count": config["topk_group"],
        }
    return {f"{architecture}.{name}": value for name, value in entries.items()}


def stored_tensors(name: str, config: dict, architecture: str) -> dict[str, np.ndarray]:
    """Return tensors by llama.cpp's names: permuted for Llama, experts stacked."""
    read = WeightFiles(MODELS / name)
    arch = next(one for one, text in gguf.MODEL_ARCH_NAMES.items() if text == architecture)
    names = gguf.get_tensor_name_map(arch, config["num_hidden_layers"])
    heads = {"q_proj": config["num_attention_heads"], "k_proj": config["num_key_value_heads"]}
    found, experts = {}, {}
    for full in read:
        array = np.asarray(read[full], np.float32)
        stem, kind = full.rsplit(".", 1)
        part = stem.rsplit(".", 1)[-1]
        if architecture == "gemma3" and stem.endswith("norm"):
            array = array + np.float32(1)
        if architecture in _PERMUTED and part in heads:
            array = permute(array, heads[part])
        if architecture == "gpt-oss" and ".experts." in full:
            found |= separate(
                names.get_name(f"{stem.removesuffix('.experts')}.router"), full, array
            )
        elif stem.endswith("self_attn") or full.endswith("e_score_correction_bias"):
            stored = full.removesuffix("_bias")
            found[f"{names.get_name(stored)}.{'weight' if stored == full else 'bias'}"] = array
        elif ".experts." in stem:
            layer, rest = stem.split(".experts.")
            index, part = rest.split(".")
            experts.setdefault(f"{layer}.experts.{part}", {})[int(index)] = array
        else:
            found[f"{names.get_name(stem)}.{kind}"] = array
    for stem, arrays in experts.items():
        stacked = np.stack([arrays[i] for i in range(len(arrays))])
        found[f"{names.get_name(stem)}.weight"] = stacked
    if architecture == "glm4moe":  # of a layer that predicts further tokens
        found[f"blk.{config['num_hidden_layers']}.nextn.enorm.weight"] = np.ones(4, np.float32)
    scaling = config.get("rope_parameters") or {}
    if scaling.get("rope_type") == "longrope":
        for kind in ("long", "short"):
            found[f"rope_factors_{kind}.weight"] = np.array(scaling[f"{kind}_factor"], np.float32)
    if scaling.get("rope_type") == "llama3":
        found["rope_freqs.weight"] = rope_factors(config, scaling)
    return found


def separate(router: str, full: str, array: np.ndarray) -> dict[str, np.ndarray]:
    """Store gpt-oss's experts as llama.cpp's converter does: gates apart, matrices transposed."""
    layer, part = router.rsplit(".", 1)[0], full.rsplit(".", 1)[-1]
    kind = "bias" if part.endswith("_bias") else "weight"
    array = array if kind == "bias" else array.swapaxes(1, 2)
    if part.startswith("down"):
        return {f"{layer}.ffn_down_exps.{kind}": np.ascontiguousarray(array)}
    return {
        f"{layer}.ffn_{name}_exps.{kind}": np.ascontiguousarray(array[:, first::2])
        for first, name in enumerate(("gate", "up"))
    }


def permute(array: np.ndarray, heads: int) -> np.ndarray:
    """Reorder the rows of a head as llama.cpp's converter does for Llama."""
    halves = array.reshape(heads, 2, array.shape[0] // heads // 2, *array.shape[1:])
    return halves.swapaxes(1, 2).reshape(array.shape)


def rope_factors(config: dict, scaling: dict) -> np.ndarray:
    """Compute `rope_freqs`, wavelength by wavelength."""
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    positions, dim = scaling["original_max_position_embeddings"], config["head_dim"]
    theta = (config.get("rope_parameters") or config)["rope_theta"]
    found = []
    for i in range(0, dim, 2):
        wavelength = 2 * np.pi * theta ** (i / dim)
        if wavelength < positions / high:
            found.append(1.0)
        elif wavelength > positions / low:
            found.append(scaling["factor"])
        else:
            smooth = (positions / wavelength - low) / (high - low)
            found.append(1 / ((1 - smooth) / scaling["factor"] + smooth))
    return np.asarray(found, np.float32)
