"""Derive the tensors of the recorded hub repositories from their config.json.

    PYTHONPATH=.:tests/helpers python -m make_repositories [NAME ...]    # targets need PyTorch

A target's names and shapes are those of transformers' class on the device `meta`, under the names
that its `save_pretrained` gives them; models of text and images were published before those names.
Quantised weights are laid out as their formats say (AutoAWQ, AutoGPTQ, compressed-tensors,
DeepSeek's FP8, OCP's MXFP4), and GLM's head that predicts further tokens as DeepSeek-V3's. A
drafter's are those of its authors' class.
"""

from __future__ import annotations

import re
import sys
from typing import Any

from repositories import Repository, Tensor, list_recorded, read_repository, write_repository

# Names of parts of models of text and images -> as published.
_PUBLISHED = {
    "model.language_model.": "language_model.model.",
    "model.vision_tower.": "vision_tower.",
    "model.multi_modal_projector.": "multi_modal_projector.",
    "lm_head.": "language_model.lm_head.",
}
_STORED = {"bfloat16": "BF16", "float16": "F16", "float32": "F32"}


def derive_target(hf: dict[str, Any]) -> dict[str, Tensor]:
    """Derive the tensors of a target."""
    dtype = _STORED[hf.get("torch_dtype") or hf.get("dtype") or "bfloat16"]
    tensors = {name: Tensor(dtype, shape) for name, shape in _list_class(hf)}
    if "text_config" in hf:
        tensors = {_rename(name): tensor for name, tensor in tensors.items()}
    if hf.get("num_nextn_predict_layers"):
        tensors |= _list_next_layers(hf, tensors)
    # The class keeps these in float32 whatever the others are.
    tensors = {
        name: Tensor("F32", tensor.shape) if "e_score_correction_bias" in name else tensor
        for name, tensor in tensors.items()
    }
    settings = hf.get("quantization_config")
    return tensors if settings is None else _quantise(tensors, settings, dtype)


def _list_class(hf: dict[str, Any]) -> list[tuple[str, tuple[int, ...]]]:
    import torch
    import transformers
    from transformers.core_model_loading import revert_weight_conversion

    entries = {k: v for k, v in hf.items() if k not in ("model_type", "quantization_config")}
    config = transformers.AutoConfig.for_model(hf["model_type"], **entries)
    with torch.device("meta"):
        model = getattr(transformers, hf["architectures"][0])(config)
    state = revert_weight_conversion(model, model.state_dict())
    tied = bool(getattr(config.get_text_config(), "tie_word_embeddings", False))
    head = "lm_head.weight"
    return [(n, tuple(t.shape)) for n, t in state.items() if not (tied and n.endswith(head))]


def _rename(name: str) -> str:
    prefix = next((old for old in _PUBLISHED if name.startswith(old)), "")
    return _PUBLISHED.get(prefix, "") + name.removeprefix(prefix)


def _list_next_layers(hf: dict[str, Any], tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """List the layer behind the last one, which predicts the token after the next."""
    count, width = hf["num_hidden_layers"], hf["hidden_size"]
    old, new = f"model.layers.{count - 1}.", f"model.layers.{count}."
    found = {n.replace(old, new): t for n, t in tensors.items() if n.startswith(old)}
    table = tensors["model.embed_tokens.weight"]
    return found | {
        f"{new}eh_proj.weight": Tensor("BF16", (width, 2 * width)),
        f"{new}enorm.weight": Tensor("BF16", (width,)),
        f"{new}hnorm.weight": Tensor("BF16", (width,)),
        f"{new}shared_head.norm.weight": Tensor("BF16", (width,)),
        f"{new}shared_head.head.weight": table,
        f"{new}embed_tokens.weight": table,
    }


def _quantise(
    tensors: dict[str, Tensor], settings: dict[str, Any], dtype: str
) -> dict[str, Tensor]:
    method, found = settings["quant_method"], {}
    for name, tensor in tensors.items():
        if method == "mxfp4":
            experts = re.search(r"experts\.(gate_up|down)_proj$", name)
            found |= _mxfp4(name, tensor) if experts else {name: tensor}
        elif re.search(r"layers\..*_proj\.weight$", name) and "vision" not in name:
            stem = name.removesuffix(".weight")
            parts = _METHODS[method](*tensor.shape, settings, dtype)
            found |= {f"{stem}.{part}": Tensor(*of) for part, of in parts.items()}
        else:
            found.setdefault(name, tensor)
    return found


def _mxfp4(name: str, tensor: Tensor) -> dict[str, Tensor]:
    experts, inputs, outputs = tensor.shape
    return {
        f"{name}_blocks": Tensor("U8", (experts, outputs, inputs // 32, 16)),
        f"{name}_scales": Tensor("U8", (experts, outputs, inputs // 32)),
    }


def _awq(outputs: int, inputs: int, settings: dict[str, Any], dtype: str) -> dict[str, tuple]:
    groups = inputs // settings["group_size"]
    return {
        "qweight": ("I32", (inputs, outputs // 8)),
        "qzeros": ("I32", (groups, outputs // 8)),
        "scales": ("F16", (groups, outputs)),
    }


def _gptq(outputs: int, inputs: int, settings: dict[str, Any], dtype: str) -> dict[str, tuple]:
    groups = inputs // settings["group_size"]
    return {
        "bias": ("F16", (outputs,)),  # of every module, zeros where the model has none
        "g_idx": ("I32", (inputs,)),
        "qweight": ("I32", (inputs // 8, outputs)),
        "qzeros": ("I32", (groups, outputs // 8)),
        "scales": ("F16", (groups, outputs)),
    }


def _compressed(
    outputs: int, inputs: int, settings: dict[str, Any], dtype: str
) -> dict[str, tuple]:
    weights = settings["config_groups"]["group_0"]["weights"]
    if settings["format"] == "float-quantized":
        return {"weight": ("F8_E4M3", (outputs, inputs)), "weight_scale": (dtype, (outputs, 1))}
    return {
        "weight_packed": ("I32", (outputs, inputs // 8)),
        "weight_scale": (dtype, (outputs, inputs // weights["group_size"])),
        "weight_shape": ("I64", (2,)),
    }


def _fp8(outputs: int, inputs: int, settings: dict[str, Any], dtype: str) -> dict[str, tuple]:
    block = settings.get("weight_block_size")
    found = {"weight": ("F8_E4M3", (outputs, inputs))}
    if block is None:
        return found | {"weight_scale_inv": ("BF16", ()), "activation_scale": ("BF16", ())}
    sizes = -(-outputs // block[0]), -(-inputs // block[1])
    return found | {"weight_scale_inv": ("BF16", sizes)}


_METHODS = {"awq": _awq, "gptq": _gptq, "compressed-tensors": _compressed, "fp8": _fp8}


def derive_drafter(hf: dict[str, Any]) -> dict[str, Tensor]:
    """Derive the tensors of a drafter."""
    named = hf["architectures"][0]
    if named == "TreeFlashDraftModel":
        return _list_treeflash(hf)
    if "DFlash" in named or "DSpark" in named:
        return _list_block(hf)
    if "pard_token" in hf:
        return derive_target(hf)
    return _list_eagle(hf)


def _list_layer(
    prefix: str, hf: dict[str, Any], inputs: int, dtype: str, normed: bool
) -> dict[str, Tensor]:
    width, ffn = hf["hidden_size"], hf["intermediate_size"]
    head = hf.get("head_dim") or width // hf["num_attention_heads"]
    queries, keys = hf["num_attention_heads"] * head, hf["num_key_value_heads"] * head
    shapes = {
        "input_layernorm": (width,),
        "post_attention_layernorm": (width,),
        "self_attn.q_proj": (queries, inputs),
        "self_attn.k_proj": (keys, inputs),
        "self_attn.v_proj": (keys, inputs),
        "self_attn.o_proj": (width, queries),
        "mlp.gate_proj": (ffn, width),
        "mlp.up_proj": (ffn, width),
        "mlp.down_proj": (width, ffn),
    }
    shapes |= {f"self_attn.{x}_norm": (head,) for x in "qk"} if normed else {}
    return {f"{prefix}{name}.weight": Tensor(dtype, shape) for name, shape in shapes.items()}


def _list_eagle(hf: dict[str, Any]) -> dict[str, Tensor]:
    layer, speculators = hf.get("transformer_layer_config", hf), "speculators_config" in hf
    dtype = _STORED[hf.get("dtype") or hf.get("torch_dtype") or "bfloat16"]
    width, vocab, drafted = layer["hidden_size"], layer["vocab_size"], hf["draft_vocab_size"]
    prefix = "layers.0." if speculators else "midlayer."
    tensors = _list_layer(prefix, layer, 2 * width, dtype, normed=False)
    tensors |= {
        f"{prefix}hidden_norm.weight": Tensor(dtype, (width,)),
        "fc.weight": Tensor(dtype, (width, 3 * width)),
        "norm.weight": Tensor(dtype, (width,)),
        "lm_head.weight": Tensor(dtype, (drafted, width)),
        "d2t": Tensor("I64", (drafted,)),
        "t2d": Tensor("BOOL", (vocab,)),
    }
    if hf.get("norm_before_fc"):
        tensors["input_norm.weight"] = Tensor(dtype, (3 * width,))
    if speculators:
        tensors["embed_tokens.weight"] = Tensor(dtype, (vocab, width))
    return tensors


def _list_block(hf: dict[str, Any], prefix: str = "") -> dict[str, Tensor]:
    width, taps = hf["hidden_size"], hf.get("target_layer_ids")
    taps = taps or hf["dflash_config"]["target_layer_ids"]
    tensors = {
        f"{prefix}fc.weight": Tensor("BF16", (width, len(taps) * width)),
        f"{prefix}hidden_norm.weight": Tensor("BF16", (width,)),
        f"{prefix}norm.weight": Tensor("BF16", (width,)),
    }
    for i in range(hf["num_hidden_layers"]):
        tensors |= _list_layer(f"{prefix}layers.{i}.", hf, width, "BF16", normed=True)
    if hf["architectures"] != ["Qwen3DSparkModel"]:
        return tensors
    vocab, rank = hf["vocab_size"], hf["markov_rank"]
    return tensors | {
        "embed_tokens.weight": Tensor("BF16", (vocab, width)),
        "lm_head.weight": Tensor("BF16", (vocab, width)),
        "markov_head.markov_w1.weight": Tensor("BF16", (vocab, rank)),
        "markov_head.markov_w2.weight": Tensor("BF16", (vocab, rank)),
        "confidence_head.proj.weight": Tensor("BF16", (1, width + rank)),
        "confidence_head.proj.bias": Tensor("BF16", (1,)),
    }


def _list_treeflash(hf: dict[str, Any]) -> dict[str, Tensor]:
    width, inner = hf["hidden_size"], hf["intermediate_size"]
    shapes = {
        "norm.weight": (width,),
        "ug.weight": (2 * inner, 2 * width),
        "ug.bias": (2 * inner,),
        "d.weight": (width, inner),
    }
    own = {f"ar_approximation.{name}": Tensor("BF16", shape) for name, shape in shapes.items()}
    return _list_block(hf, "model.") | own


def derive(repository: Repository) -> Repository:
    """Return a record with the tensors that its config.json implies.

    Whether a projection that is tied to the embeddings is stored too only the record knows.
    """
    made = derive_target if repository.target is None else derive_drafter
    tensors = made(repository.config)
    if "lm_head.weight" in repository.tensors:
        tensors["lm_head.weight"] = repository.tensors["lm_head.weight"]
    return repository._replace(tensors=tensors)


if __name__ == "__main__":
    for name in sys.argv[1:] or list_recorded():
        write_repository(name, derive(read_repository(name)))
