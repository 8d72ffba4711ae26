"""Describe a checkpoint without loading it: kind, target, feature layers and size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxspec.drafters.files import check_files, find_config
from jaxspec.drafters.hf_fields import FEATURE_CONVENTION
from jaxspec.io.hub import shipped
from jaxspec.io.weights import provenance
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.families.hf_fields import find_text_config
from jaxspec.targets.gguf_files.layout import is_gguf
from jaxspec.targets.weights import check as check_target
from jaxspec.zoo import families
from jaxspec.zoo.places import find_drafters, open_target, resolve_model
from jaxspec.zoo.weight_sizes import sum_sizes

_FLAGS = (
    "draft_vocab_size", "norm_before_residual", "norm_before_fc", "norm_output", "fc_norm", "sample_from_anchor",
    "sliding_window_non_causal", "tie_word_embeddings", "attention_bias", "embed_requires_grad", "markov_rank",
    "markov_head_type", "enable_confidence_head", "confidence_head_with_markov", "projector_type", "layer_types",
    "sliding_window", "use_sliding_window", "medusa_fc_bias", "original_lm_head", "truncated_vocab_size",
    "diffspec_draft_token_num", "rank_classes", "num_ttt_blocks", "attention_sink_bias",
)  # fmt: skip
_SIZES = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "num_key_value_heads", "head_dim", "intermediate_size",
    "vocab_size", "max_position_embeddings",
)  # fmt: skip


def describe_checkpoint(source) -> dict[str, Any]:
    """Describe a model or drafter.

    Args:
      source: directory, hub id or name of a shipped model.

    Returns:
      JSON values:
        `path`, `family`, `layout`.
        `readable`: whether `jaxspec.load` takes it.
        `problem`: why not.
        `target`: the target that a drafter records.
        `feature_layers`: `output_of_layer`, 0-based, the convention here and at z-lab;
          `input_of_layer`, the convention of vLLM and speculators; `field` and `counts`, the field
          of config.json and what it counts; `note`; `contradicted`, whether its own `jaxspec`
          object says otherwise.
        `architecture`, `block_size`, `mask_token_id`.
        `draft_vocabulary`: number of tokens that can be drafted; None if config.json does not say.
        `flags`.
        `weights`: `parameters`, `bytes`, `dtypes`, `packed`, `coded`, `quantised` (the format of a
          target in few bits), `tensors`, `files`.
        `drafters`: names of a target's drafters.

    Raises:
      FileNotFoundError: the place does not exist, or has no config.json.
      ValueError: config.json or a weight file is damaged.
    """
    directory = resolve_model(source)
    hf = read_entries(directory / "config.json")
    weights = sum_sizes(directory, hf)
    names = weights.pop("names")
    found = families.family(hf, names)
    own = hf.get("dflash_config") or {}
    inner = hf.get("transformer_layer_config") or find_text_config(hf)
    problem = _problem(directory, hf, found)
    return {
        "path": str(source),
        "family": found,
        "layout": "GGUF" if is_gguf(directory) else families.layout(hf, names),
        "readable": problem is None,
        "problem": problem,
        "target": None if found == "target" else _target(hf),
        "feature_layers": None if found == "target" else _feature_layers(hf, found),
        "architecture": {name: inner[name] for name in _SIZES if inner.get(name) is not None},
        "block_size": own.get("block_size", hf.get("block_size")),
        "mask_token_id": own.get("mask_token_id", hf.get("mask_token_id")),
        "draft_vocabulary": hf.get("draft_vocab_size"),
        "flags": _flags(hf, inner, own),
        "weights": weights,
        "drafters": list(shipped(find_drafters(source, directory))),
    }


def render_description(about: dict[str, Any]) -> str:
    """Format the description as lines of text."""
    target, weights, drafters = about["target"], about["weights"], about["drafters"]
    size, whole = about["draft_vocabulary"], about["architecture"].get("vocab_size")
    known = [f"{key} {value}" for key, value in (target or {}).items() if value is not None]
    dtypes = ", ".join(f"{name} {count:,}" for name, count in weights["dtypes"].items())
    rows = [
        ("what", f"{about['family']}, layout {about['layout']}"),
        ("readable", "yes" if about["readable"] else f"no: {about['problem']}"),
        ("for target", ", ".join(known) if target else None),
        *_list_layer_rows(about["feature_layers"]),
        ("sizes", ", ".join(f"{name} {value}" for name, value in about["architecture"].items())),
        *((name, about[name]) for name in ("block_size", "mask_token_id")),
        ("draft vocabulary", f"{size:,} of {whole:,} tokens" if size and whole else None),
        ("flags", ", ".join(f"{name}={x}" for name, x in about["flags"].items()) or "none given"),
        (
            "weights",
            f"{weights['parameters']:,} parameters ({dtypes}), {weights['bytes']:,} bytes, "
            f"{weights['tensors']} tensors",
        ),
        ("stored", _describe_storage(weights)),
        ("files", ", ".join(weights["files"])),
        ("drafters", ", ".join(drafters) if drafters else None),
    ]
    return "\n".join(f"{name:18} {value}" for name, value in rows if value is not None)


def _describe_storage(weights: dict[str, Any]) -> str | None:
    if weights["quantised"]:
        return f"in few bits: {weights['quantised']}"
    if weights["packed"]:
        return "6 bits a weight with a scale per output channel, read as floats"
    if weights["coded"]:
        return "in codes, bit for bit; convert --to bfloat16 writes them in full"
    return None


def _list_layer_rows(layers: dict[str, Any] | None) -> list[tuple[str, str | None]]:
    """List what is known of the feature layers: (name, value)."""
    if not layers:
        return []
    counts = f", which counts {layers['counts']}s of layers" if layers["counts"] else ""
    rows = [("feature layers", layers["field"] + counts)]
    if layers["output_of_layer"] is not None:
        readers = "(0-based: jaxspec, z-lab, SGLang, SpecForge)"
        rows += [
            ("  output of layer", f"{layers['output_of_layer']} {readers}"),
            ("  input of layer", f"{layers['input_of_layer']} (vLLM, speculators, llama.cpp)"),
        ]
    return [*rows, ("  careful", layers["note"] or None)]


def _problem(directory: Path, hf: dict, found: str) -> str | None:
    """Say why `jaxspec.load` would refuse the checkpoint; None if it would not."""
    if found in families.UNREADABLE:
        return f"{found} drafters are recognised but cannot be loaded"
    try:
        if found == "target":
            check_target(open_target(directory), target_config(hf))
        else:
            check_files(directory, find_config(directory))
    except (ValueError, FileNotFoundError) as error:
        return str(error)
    return None


def _target(hf: dict) -> dict[str, Any]:
    made_for = provenance.recorded(hf)
    inner = hf.get("transformer_layer_config") or hf
    named = (
        made_for.target or hf.get("base_model_name_or_path") or hf.get("target_model_name_or_path")
    )
    return {
        "name": named or "not recorded",
        "revision": made_for.revision,
        "layers": (hf.get("jaxspec") or {}).get("num_target_layers") or hf.get("num_target_layers"),
        "hidden_size": hf.get("target_hidden_size") or inner.get("hidden_size"),
        "vocabulary": inner.get("vocab_size"),
        "tokenizer_sha256": made_for.tokenizer,
        "chat_template_sha256": made_for.chat_template,
    }


def _feature_layers(hf: dict, found: str) -> dict[str, Any]:
    layers = families.feature_layers(hf, found)
    outputs = None if layers.outputs is None else list(layers.outputs)
    notes = [layers.note] if layers.note else []
    own = hf.get("jaxspec") or {}
    comparable = own.get("feature_convention") == FEATURE_CONVENTION and layers.convention
    contradicted = bool(comparable) and own.get("feature_layers") != outputs
    count = own.get("num_target_layers") or hf.get("num_target_layers")
    if outputs and count and max(outputs) == count - 1:
        notes.append(
            "the last layer's output is read before the final norm, which transformers and vLLM "
            "do not give"
        )
    if contradicted:
        notes.append(
            f"its jaxspec object says {own.get('feature_layers')}: one of the two is wrong"
        )
    return {
        "output_of_layer": outputs,
        "input_of_layer": None if outputs is None else [i + 1 for i in outputs],
        "field": layers.source,
        "counts": layers.convention,
        "note": "; ".join(notes),
        "contradicted": contradicted,
    }


def _flags(hf: dict, inner: dict, own: dict) -> dict[str, Any]:
    flags = {
        name: place[name] for place in (inner, hf) for name in _FLAGS if place.get(name) is not None
    }
    flags |= {
        f"dflash_config.{name}": value
        for name, value in own.items()
        if name not in ("mask_token_id", "target_layer_ids")
    }
    heads = hf.get("treeflash_config") or {}
    flags |= {f"treeflash_config.{name}": value for name, value in heads.items()}
    ours = hf.get("jaxspec") or {}
    names = ("score_temperature", "output_projection")
    return flags | {f"jaxspec.{name}": ours[name] for name in names if ours.get(name) is not None}
