"""config.json of published DFlash drafters and JetSpec heads, to and from `BlockDrafterConfig`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import (
    draft_vocab_size,
    own_fields,
    read_builder,
    score_temperature,
)
from jaxspec.targets.families.hf_fields import integer, transformer_fields, transformer_fields_to_hf

ARCHITECTURE = "DFlashDraftModel"
_DRAFT_NOTE = "reduced: lm_head.weight, d2t and t2d are read by jaxspec alone; vLLM and SGLang have no such causal head"


def drafter_config(hf: dict[str, Any]) -> BlockDrafterConfig:
    """Read the `BlockDrafterConfig` of a config.json in the DFlash layout, which JetSpec heads
    share.

    Exporters vary the class's name (`QwenDFlashDraftModel`, …). `block_size` is at the top or in
    `dflash_config`. `causal_head` (JetSpec) and `causal` (vLLM)
    mean the same. `target_layer_ids` count decoder layers from 0 and name their outputs, which is
    this library's convention too.

    Raises:
      ValueError: the architecture is another one, a field is missing, or a setting is not
        supported.
    """
    named = str((hf.get("architectures") or [""])[0])
    known = "DFlash" in named and "DFlash2" not in named
    if not known or hf.get("model_type", "qwen3") != "qwen3":
        raise ValueError(
            f"unknown drafter architecture {named!r} (model_type {hf.get('model_type')!r}); "
            f"supported: {ARCHITECTURE} of type 'qwen3' (DFlash, JetSpec)"
        )
    projector = (hf.get("dflash_config") or {}).get("projector_type", "dflash")
    if projector != "dflash":
        raise ValueError(
            f"config.json: dflash_config.projector_type = {projector!r} is not supported: it makes "
            "another network than DFlash's"
        )
    return BlockDrafterConfig(**block_fields(hf))


def block_fields(hf: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of `BlockDrafterConfig` from a config.json with a `dflash_config`.

    Raises:
      ValueError: a field is missing, or a setting is not supported.
    """
    own = hf.get("dflash_config") or {}
    fields = transformer_fields(hf, default_head_dim=128)
    if own.get("attention_sink_bias") or hf.get("attention_sink_bias"):
        raise ValueError("config.json: dflash_config.attention_sink_bias is not supported")
    vocab = integer(hf, "vocab_size")
    block_size = integer(
        own | {"block_size": own.get("block_size", hf.get("block_size"))}, "block_size"
    )
    if block_size < 2:
        raise ValueError("config.json: block_size counts the anchor, so it must be at least 2")
    return fields | {
        "block_size": block_size,
        "mask_token_id": _read_mask_token(own, hf),
        "feature_layers": _read_feature_layers(own, hf, fields["num_layers"]),
        "causal": _read_causal(own),
        "sliding_window": read_sliding_window(own, hf, fields["num_layers"]),
        "target_hidden_size": integer(own, "target_hidden_size", fields["hidden_size"]),
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab_size(hf, vocab),
        "score_temperature": score_temperature(hf),
        "builder": read_builder(hf),
    }


def drafter_config_to_hf(
    config: BlockDrafterConfig, about: About, dtype: str = "float32"
) -> dict[str, Any]:
    """Make a config.json that DFlash's and JetSpec's code, vLLM and SGLang read as `config`.

    Args:
      about: the target.
      dtype: dtype of the weights.

    Raises:
      ValueError: the draft vocabulary is reduced, for which only the speculators schema has a
        field. That schema has none for a causal head, which is therefore written here, with a note
        that this library alone reads it.
    """
    reduced = config.draft_vocab_size is not None
    if reduced and not config.causal:
        raise ValueError(
            "the native layout has no place for a reduced draft vocabulary "
            f"({config.draft_vocab_size} of {config.vocab_size} tokens): write this drafter in the "
            "speculators schema (--to speculators)"
        )
    return {
        "architectures": [ARCHITECTURE],
        **layer_fields_to_hf(config, about.max_positions, dtype),
        "num_target_layers": about.num_layers,
        "block_size": config.block_size,
        **({"draft_vocab_size": config.draft_vocab_size} if reduced else {}),
        # The same facts again, where newer checkpoints and vLLM look for them.
        "dflash_config": {
            "mask_token_id": config.mask_token_id,
            "target_layer_ids": list(config.feature_layers),
            "block_size": config.block_size,
            "causal_head": config.causal,
            "causal": config.causal,
            "target_hidden_size": config.target_hidden_size,
        },
        "jaxspec": own_fields(config, about.num_layers, about.provenance)
        | ({"draft_vocabulary": _DRAFT_NOTE} if reduced else {}),
    }


def layer_fields_to_hf(
    config: BlockDrafterConfig, max_positions: int, dtype: str
) -> dict[str, Any]:
    """Describe the draft layers as a Qwen3 config.json does, for the native layout and the
    speculators schema.
    """
    window, sliding = config.sliding_window or (None, (False,) * config.num_layers)
    return {
        "model_type": "qwen3",
        **transformer_fields_to_hf(config, dtype),
        "vocab_size": config.vocab_size,
        "tie_word_embeddings": False,
        "max_position_embeddings": max_positions,
        "layer_types": ["sliding_attention" if slides else "full_attention" for slides in sliding],
        "sliding_window": window,
        "use_sliding_window": window is not None,
    }


def default_feature_layers(num_target_layers: int, count: int) -> tuple[int, ...]:
    """Choose DFlash's feature layers: the middle layer, or `count` layers evenly spaced from 1 to
    `num_target_layers` - 3 inclusive.
    """
    if count == 1:
        return (num_target_layers // 2,)
    return tuple(round(1 + i * (num_target_layers - 4) / (count - 1)) for i in range(count))


def _read_mask_token(own: dict, hf: dict) -> int:
    token = own.get("mask_token_id", hf.get("mask_token_id"))
    if not isinstance(token, int) or isinstance(token, bool) or token < 0:
        raise ValueError(
            f"config.json: dflash_config.mask_token_id must be a token id, not {token!r}"
        )
    return token


def _read_feature_layers(own: dict, hf: dict, count: int) -> tuple[int, ...]:
    layers = own.get("target_layer_ids")
    if layers is None:
        return default_feature_layers(integer(hf, "num_target_layers"), count)
    limit = hf.get("num_target_layers") or float("inf")
    if not layers or not all(isinstance(layer, int) and 0 <= layer < limit for layer in layers):
        raise ValueError(
            f"config.json: dflash_config.target_layer_ids must be layers 0 to {limit - 1}, "
            f"not {layers!r}"
        )
    return tuple(layers)


def _read_causal(own: dict) -> bool:
    said = {bool(own[name]) for name in ("causal_head", "causal") if own.get(name) is not None}
    if len(said) > 1:
        raise ValueError("config.json: dflash_config.causal_head and dflash_config.causal disagree")
    return said == {True}


def read_sliding(kinds: Sequence[str], count: int) -> tuple[bool, ...]:
    """Read which of `count` layers slide from their `layer_types`."""
    if len(kinds) != count or set(kinds) - {"full_attention", "sliding_attention"}:
        raise ValueError(
            "config.json: layer_types must name full_attention or sliding_attention for each of "
            f"{count} layers"
        )
    return tuple(kind == "sliding_attention" for kind in kinds)


def read_sliding_window(own: dict, hf: dict, count: int) -> tuple[int, tuple[bool, ...]] | None:
    """Read the window and which layers see no further: those in `layer_types`, or all by `use_swa`.

    transformers by itself writes a `layer_types` of full attention alone, which therefore does not
    overrule `use_swa`.
    """
    kinds = own.get("layer_types") or hf.get("layer_types") or ["full_attention"] * count
    if own.get("use_swa") and "sliding_attention" not in kinds:
        kinds = ["sliding_attention"] * count
    sliding = read_sliding(kinds, count)
    if not any(sliding):
        return None
    window = own.get("swa_window_size") or own.get("sliding_window") or hf.get("sliding_window")
    return integer({"sliding_window": window}, "sliding_window"), sliding
