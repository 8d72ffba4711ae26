"""Read config.json and check the type of every entry that this library knows.

The modules that use an entry decide what it means and whether it is required; they can rely on its
type. `field` checks an entry of a format that this module does not know.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from jaxspec.io.files.json_files import read_json

# No model has more layers, heads or draft steps. A larger count in a damaged file would fill the
# memory.
_MOST = 100_000


class Kind(NamedTuple):
    """A type of entry: its name in error messages, and whether a value has it."""

    wanted: str
    holds: Callable[[Any], bool]


def _is_integer(value: Any) -> bool:
    return type(value) is int and abs(value) < 2**63


def _is_number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value) and abs(value) < 1e30


def _each(check: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(check(one) for one in value)


INTEGER = Kind("an integer", _is_integer)
COUNT = Kind(f"an integer from 1 to {_MOST}", lambda x: _is_integer(x) and 1 <= x <= _MOST)
NUMBER = Kind("a number", _is_number)
POSITIVE = Kind("a number above 0", lambda x: _is_number(x) and x > 0)
FLAG = Kind("true or false", lambda x: isinstance(x, bool))
TEXT = Kind("a string", lambda x: isinstance(x, str))
OBJECT = Kind("an object", lambda x: isinstance(x, dict))
INTEGERS = Kind("a list of integers", _each(_is_integer))
TEXTS = Kind("a list of strings", _each(lambda x: isinstance(x, str)))
NUMBERS = Kind("one or two numbers above 0", lambda x: POSITIVE.holds(x) or _is_pair(x))
POSITIVES = Kind("a list of numbers above 0", _each(POSITIVE.holds))
TOKENS = Kind("a token id or a list of them", lambda x: _is_integer(x) or _each(_is_integer)(x))


def _is_pair(value: Any) -> bool:
    return isinstance(value, list) and len(value) == 2 and all(map(POSITIVE.holds, value))


def _entries(kind: Kind, names: str) -> dict[str, Kind]:
    return dict.fromkeys(names.split(), kind)


# By name of the entry, at the top level or in any of the objects below.
ENTRIES: Mapping[str, Kind] = MappingProxyType(
    _entries(
        COUNT,
        "num_hidden_layers num_attention_heads num_key_value_heads num_target_layers block_size "
        "num_experts num_local_experts num_experts_per_tok decoder_sparse_step depth blocks slots "
        "lstm_layers medusa_num_heads medusa_num_layers num_heads diffspec_draft_token_num "
        "rank_classes candidate_tokens",
    )
    | _entries(
        INTEGER,
        "hidden_size intermediate_size head_dim vocab_size max_position_embeddings "
        "moe_intermediate_size draft_vocab_size target_hidden_size mask_token_id sliding_window "
        "swa_window_size max_window_layers truncated_vocab_size rank_hidden rank_top lstm_size "
        "original_max_position_embeddings markov_rank global_head_dim v_head_dim "
        "num_global_key_value_heads hidden_size_per_layer_input vocab_size_per_layer_input "
        "num_kv_shared_layers top_k_experts sliding_window_size",
    )
    | _entries(POSITIVE, "rms_norm_eps rope_theta factor")
    | _entries(NUMBER, "low_freq_factor high_freq_factor partial_rotary_factor")
    | _entries(
        FLAG,
        "tie_word_embeddings attention_bias mlp_bias use_sliding_window norm_topk_prob "
        "norm_before_residual causal causal_head use_swa attention_sink_bias own_projection "
        "qk_norm shift prefix_broadcast original_lm_head sliding_window_non_causal "
        "sample_from_anchor enable_confidence_head confidence_head_with_markov embed_requires_grad "
        "own_embeddings attention_k_eq_v use_double_wide_mlp enable_moe_block",
    )
    | _entries(
        TEXT,
        "model_type hidden_act rope_type type speculators_model_type speculators_version "
        "speculation_type projector_type name_or_path base_model_name_or_path target "
        "target_model_name_or_path target_revision tokenizer_sha256 chat_template_sha256 "
        "feature_convention quant_method storage markov_head_type "
        "ar_approximation",
    )
    | _entries(TEXTS, "architectures layer_types")
    | _entries(
        INTEGERS,
        "feature_layers target_layer_ids aux_hidden_state_layer_ids "
        "eagle_aux_hidden_state_layer_ids mlp_only_layers",
    )
    | _entries(
        OBJECT,
        "jaxspec rope_scaling rope_parameters dflash_config dspark_config eagle_config "
        "treeflash_config "
        "per_layer_config transformer_layer_config speculators_config verifier quantization_config training",
    )
    | {
        "score_temperature": NUMBERS,
        "confidence_temperatures": POSITIVES,
        "eos_token_id": TOKENS,
    }
)


def read_entries(path: str | Path) -> dict[str, Any]:
    """Read the JSON object in `path`, leaving out entries that are null.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: it is not a JSON object, or an entry of `ENTRIES` has another type.
    """
    path = Path(path)
    return _checked(read_json(path), str(path), "")


def field(
    entries: Mapping[str, Any], name: str, kind: Kind, default: Any = None, where: str = ""
) -> Any:
    """Return the entry `name` of a config.json, or `default` if it is absent or null.

    Args:
      entries: config.json, or an object in it.
      name: name of the entry.
      kind: the type that the entry must have, for example `COUNT` or `FLAG`.
      default: None if the entry is required.
      where: the object in config.json that holds the entry, with a dot (`jaxspec.`).

    Raises:
      ValueError: the entry has another type, or is missing.
    """
    value = entries.get(name)
    if value is None and default is None:
        raise ValueError(f"config.json lacks {where + name!r}: add {kind.wanted}")
    if value is None:
        return default
    _check("config.json", where + name, value, kind)
    return value


def _checked(entries: dict[str, Any], path: str, where: str) -> dict[str, Any]:
    """Check all entries and the objects among them; return those that are not null."""
    kept = {name: value for name, value in entries.items() if value is not None}
    for name, value in kept.items():
        if name in ENTRIES:
            _check(path, where + name, value, ENTRIES[name])
        if ENTRIES.get(name) is OBJECT:
            kept[name] = _checked(value, path, f"{where}{name}.")
    return kept


def _check(path: str, name: str, value: Any, kind: Kind) -> None:
    if not kind.holds(value):
        found = repr(value)
        found = found if len(found) <= 60 else f"{found[:57]}..."
        raise ValueError(
            f"{path}: {name} must be {kind.wanted}, not {found}; correct it or download the file "
            "again"
        )
