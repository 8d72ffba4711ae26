"""The speculators schema of a DFlash drafter, which `vllm serve DRAFTER` consumes, to and from
`BlockDrafterConfig`.

It differs from the native layout in three ways. Its layer ids name a layer's *input*, so they are
one higher than those of the native layout and of this library. `transformer_layer_config` describes
the draft layers. And the weights include copies of the target's embedding table and output
projection; of the latter, only some rows if the draft vocabulary is reduced.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.drafters.dflash.hf_config import layer_fields_to_hf, read_sliding
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import (
    draft_vocab_size,
    own_fields,
    read_builder,
    score_temperature,
    speculators_to_hf,
)
from jaxspec.io.weights.weight_map import Leaf
from jaxspec.targets.families.hf_fields import integer, transformer_fields
from jaxspec.targets.weights import EMBEDDING, HEAD

TYPE = "dflash"
# Tensors that the schema saves with the drafter although they are the target's: {here: in the
# target}.
BORROWED = {"embed_tokens.weight": EMBEDDING, HEAD: HEAD}
# The schema's own default. Everything else that has one is written and read explicitly.
_BLOCK_SIZE = 8
# Settings that make it another network than the block drafter; all are off by default.
_UNSUPPORTED = ("norm_before_fc", "fc_norm", "norm_output", "shift_label")


def is_speculators(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json is in the speculators schema, of any drafter."""
    return "speculators_model_type" in hf


def speculators_config(hf: dict[str, Any]) -> BlockDrafterConfig:
    """Read the `BlockDrafterConfig` of a config.json in the speculators schema.

    Raises:
      ValueError: the drafter is of another kind, a field is missing, a setting is not supported, or
        readers disagree about the default of a setting that the file leaves out.
    """
    kind = hf.get("speculators_model_type")
    if kind != TYPE:
        raise ValueError(
            f"speculators drafters of type {kind!r} are not supported: use another drafter of this "
            "target"
        )
    return BlockDrafterConfig(**read_drafting(hf, kind))


def read_drafting(hf: dict[str, Any], kind: str) -> dict[str, Any]:
    """Read the fields of a drafter whose anchor proposes nothing, as DFlash's does.

    Raises:
      ValueError: as `speculators_config`.
    """
    if hf.get("sample_from_anchor"):
        raise _other_network("sample_from_anchor", True)
    fields = read_block(hf, kind=kind)
    if fields["block_size"] < 2:
        raise ValueError("config.json: block_size counts the anchor, so it must be at least 2")
    return fields


def read_block(hf: dict[str, Any], first_id: int = 1, kind: str = TYPE) -> dict[str, Any]:
    """Read the fields of `BlockDrafterConfig` from a config.json in the speculators schema, for all
    drafters with this backbone.

    Args:
      first_id: lowest id of a target layer; 0 is the embeddings.
      kind: the schema's name of the drafter, which `projector_type` may repeat.

    Raises:
      ValueError: as `speculators_config`, but for any kind of drafter.
    """
    layer = hf.get("transformer_layer_config")
    if not isinstance(layer, dict) or layer.get("model_type") != "qwen3":
        found = layer.get("model_type") if isinstance(layer, dict) else layer
        raise ValueError(
            f"config.json: transformer_layer_config must be of model_type 'qwen3', not {found!r}"
        )
    used = [name for name in _UNSUPPORTED if hf.get(name)]
    used += ["projector_type"] if hf.get("projector_type") not in (None, TYPE, kind) else []
    if used:
        raise _other_network(used[0], hf[used[0]])
    fields = transformer_fields(layer, default_head_dim=128)
    vocab = integer(layer, "vocab_size")
    causal, window = _read_attention(hf, layer, fields["num_layers"])
    return fields | {
        "block_size": integer(hf, "block_size", _BLOCK_SIZE),
        "mask_token_id": read_mask_token(hf),
        "feature_layers": tuple(i - 1 for i in layer_inputs(hf, first_id)),
        "causal": causal,
        "sliding_window": window,
        "target_hidden_size": integer(hf, "target_hidden_size", fields["hidden_size"]),
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab_size(hf, vocab),
        "score_temperature": score_temperature(hf),
        "builder": read_builder(hf),
    }


def _other_network(name: str, value: Any) -> ValueError:
    return ValueError(
        f"config.json: {name} = {value!r} is not supported: it makes another network than DFlash's"
    )


def speculators_config_to_hf(
    config: BlockDrafterConfig,
    about: About,
    dtype: str = "float32",
    kind: str = TYPE,
    architecture: str = "DFlashSpeculator",
) -> dict[str, Any]:
    """Make a config.json that speculators and vLLM read as `config`.

    Args:
      about: the target.
      dtype: dtype of the weights.
      kind: the schema's name of the drafter.
      architecture: name of its class.

    Raises:
      ValueError: the target's name is unknown, or the schema cannot describe the attention.
    """
    shared = speculators_to_hf(
        kind, architecture, config.depth, about.provenance, about.architecture
    )
    return shared | {
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "aux_hidden_state_layer_ids": [layer + 1 for layer in config.feature_layers],
        "mask_token_id": config.mask_token_id,
        "block_size": config.block_size,
        "sample_from_anchor": False,
        "sliding_window_non_causal": not _check_causal(config),
        "tie_word_embeddings": False,
        "transformer_layer_config": layer_fields_to_hf(config, about.max_positions, dtype),
        "dtype": dtype,
        "torch_dtype": dtype,
        "jaxspec": own_fields(config, about.num_layers, about.provenance),
    }


def name_borrowed(config: BlockDrafterConfig) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter: all of `BORROWED`, unless the
    drafter has its own output projection.
    """
    own = config.draft_vocab_size is not None
    return {name: there for name, there in BORROWED.items() if not (own and name == HEAD)}


def describes_attention(config: BlockDrafterConfig) -> bool:
    """Say whether the schema can describe a causal backbone: it has a flag for sliding layers only."""
    return not config.causal or bool(config.sliding_window and all(config.sliding_window[1]))


def borrowed_leaves(config: BlockDrafterConfig, read: Mapping[str, np.ndarray]) -> list[Leaf]:
    """List the leaves of the target's tensors that the file holds; some writers leave them out."""
    shape = (config.vocab_size, config.target_hidden_size)
    return [Leaf((name,), ((name,),), (shape,)) for name in name_borrowed(config) if name in read]


def layer_inputs(hf: Mapping[str, Any], first_id: int = 1) -> list[int]:
    """Read `aux_hidden_state_layer_ids`: id i is the input of target layer i, the output of i - 1."""
    ids = hf.get("aux_hidden_state_layer_ids")
    if (
        not isinstance(ids, list)
        or not ids
        or not all(type(i) is int and i >= first_id for i in ids)
    ):
        raise ValueError(
            f"config.json: aux_hidden_state_layer_ids must be target layers, {first_id} or higher "
            f"(the input of each), not {ids!r}"
        )
    return ids


def _read_attention(
    hf: dict, layer: dict, count: int
) -> tuple[bool, tuple[int, tuple[bool, ...]] | None]:
    """Read (whether slots see only earlier slots, sliding window).

    `sliding_window_non_causal` applies to sliding layers alone: full-attention layers always see
    the whole block.
    """
    sliding = read_sliding(layer.get("layer_types") or ["full_attention"] * count, count)
    if not any(sliding):
        return False, None
    flag = hf.get("sliding_window_non_causal")
    if not isinstance(flag, bool):
        raise ValueError(
            "config.json lacks 'sliding_window_non_causal', and readers disagree about its "
            "default: "
            "add true (sliding layers see the whole block) or false (they are causal), as the "
            "drafter was trained"
        )
    if not flag and not all(sliding):
        raise ValueError(
            "config.json: causal sliding layers together with bidirectional full-attention layers "
            "are not supported"
        )
    return not flag, (integer(layer, "sliding_window"), sliding)


def _check_causal(config: BlockDrafterConfig) -> bool:
    """Return `config.causal`; the schema has a flag for it for sliding layers only."""
    if not describes_attention(config):
        readers = (
            "vLLM and SGLang read too"
            if config.draft_vocab_size is None
            else "with a draft vocabulary jaxspec alone reads"
        )
        raise ValueError(
            "the speculators schema has no flag for full-attention layers that are causal inside "
            f"the block: write this JetSpec head in the native layout, which {readers} "
            "(--to jetspec)"
        )
    return config.causal


def read_mask_token(hf: dict) -> int:
    token = hf.get("mask_token_id")
    if type(token) is not int or token < 0:
        raise ValueError(f"config.json: mask_token_id must be a token id, not {token!r}")
    return token
