"""config.json of DSpark drafters, DeepSpec's and that of the speculators schema, to and from
`DSparkConfig`.

DeepSpec's class `Qwen3DSparkModel` has blocks whose anchor proposes the first token, and full
attention that sees the whole block. DeepSpec's own DFlash is the same class with `markov_rank` 0:
it must not be read as z-lab's DFlash, whose slots propose one token earlier. What that class cannot
describe is written under a name of this library's own, so that other readers refuse it.

The schema is that of a DFlash drafter with entries for the heads. `sample_from_anchor` says which
slots propose. Its default has changed between readers, and with the wrong value nearly nothing is
accepted, so it is always written, and a file without it is refused.
"""

from __future__ import annotations

from typing import Any

from jaxspec.drafters.dflash import speculators
from jaxspec.drafters.dflash.hf_config import layer_fields_to_hf, read_sliding_window
from jaxspec.drafters.dspark.network import DSparkConfig
from jaxspec.drafters.format import About
from jaxspec.drafters.hf_fields import draft_vocab_size, own_fields, score_temperature
from jaxspec.targets.families.hf_fields import integer, transformer_fields

ARCHITECTURE, OWN_ARCHITECTURE = "Qwen3DSparkModel", "JaxspecDSparkModel"
# The schema's names, and what its class assumes of entries that a file leaves out.
TYPE, SPECULATORS_ARCHITECTURE = "dspark", "DSparkSpeculator"
_DEFAULTS = {"markov_rank": 256}
# The embeddings as a feature: the output of no layer.
EMBEDDINGS = -1


def dspark_config(hf: dict[str, Any]) -> DSparkConfig:
    """Read the `DSparkConfig` of a config.json in DeepSpec's layout.

    `target_layer_ids` name outputs of target layers, counted from 0; -1 means the embeddings.

    Raises:
      ValueError: the architecture is another one, a field is missing, or a setting is not
        supported.
    """
    named = (hf.get("architectures") or [None])[0]
    if named not in (ARCHITECTURE, OWN_ARCHITECTURE) or hf.get("model_type") != "qwen3":
        raise ValueError(
            f"DSpark drafters of architecture {named!r} (model_type {hf.get('model_type')!r}) are "
            f"not supported (only {ARCHITECTURE} of type 'qwen3' is)"
        )
    fields = transformer_fields(hf, default_head_dim=128)
    own, vocab = hf.get("dspark_config") or {}, integer(hf, "vocab_size")
    window = read_sliding_window({}, hf, fields["num_layers"])
    if named == ARCHITECTURE and (own or window):
        raise ValueError(
            f"config.json: {ARCHITECTURE} has full attention in all layers and no dspark_config"
        )
    return make_config(
        **fields,
        block_size=integer(hf, "block_size"),
        mask_token_id=speculators.read_mask_token(hf),
        feature_layers=_read_feature_layers(hf),
        causal=own.get("causal", False),
        sliding_window=window,
        sample_from_anchor=own.get("sample_from_anchor", True),
        target_hidden_size=integer(hf, "target_hidden_size", fields["hidden_size"]),
        vocab_size=vocab,
        draft_vocab_size=draft_vocab_size(hf, vocab),
        score_temperature=score_temperature(hf),
        **read_heads(hf, confidence=False),
    )


def dspark_config_to_hf(config: DSparkConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json that DeepSpec's code reads as `config`, or, if its class cannot describe
    the drafter, one that this library alone reads.

    Args:
      about: the target.
      dtype: dtype of the weights.
    """
    own = {"causal": config.causal, "sample_from_anchor": config.sample_from_anchor}
    own = {} if is_deepspec(config) else {"dspark_config": own}
    return {
        "architectures": [OWN_ARCHITECTURE if own else ARCHITECTURE],
        **layer_fields_to_hf(config, about.max_positions, dtype),
        "num_target_layers": about.num_layers,
        "block_size": config.block_size,
        "mask_token_id": config.mask_token_id,
        "target_layer_ids": list(config.feature_layers),
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        **heads_to_hf(config),
        **own,
        "jaxspec": own_fields(config, about.num_layers, about.provenance) | fitted_to_hf(config),
    }


def is_deepspec(config: DSparkConfig) -> bool:
    """Say whether DeepSpec's class describes the drafter."""
    special = config.causal or config.sliding_window or config.draft_vocab_size
    return config.sample_from_anchor and not special


def make_config(**fields: Any) -> DSparkConfig:
    """Make the config of a file; its errors name the file.

    Raises:
      ValueError: the fields contradict each other.
    """
    try:
        return DSparkConfig(**fields)
    except ValueError as error:
        raise ValueError(f"config.json: {error}") from None


def read_heads(hf: dict[str, Any], *, confidence: bool) -> dict[str, Any]:
    """Read the heads, as fields of `DSparkConfig`.

    Args:
      confidence: whether there is a confidence head if config.json does not say.

    Raises:
      ValueError: `markov_rank` is missing.
    """
    if "markov_rank" not in hf:
        raise ValueError("config.json lacks 'markov_rank' (0 for a drafter without a Markov head)")
    has_head, rank = hf.get("enable_confidence_head", confidence), hf["markov_rank"]
    reads_row = hf.get("confidence_head_with_markov", confidence and rank > 0)
    return {
        "markov_rank": rank,
        "markov_head": hf.get("markov_head_type", "vanilla"),
        "confidence": has_head,
        "confidence_with_markov": has_head and reads_row,
        "confidence_temperatures": tuple(
            (hf.get("jaxspec") or {}).get("confidence_temperatures", ())
        ),
    }


def fitted_to_hf(config: DSparkConfig) -> dict[str, Any]:
    """Make the entries of `jaxspec` in config.json that were fitted after the training."""
    fitted = list(config.confidence_temperatures)
    return {"confidence_temperatures": fitted} if fitted else {}


def heads_to_hf(config: DSparkConfig) -> dict[str, Any]:
    """Invert `read_heads`."""
    return {
        "markov_rank": config.markov_rank,
        "markov_head_type": config.markov_head,
        "enable_confidence_head": config.confidence,
        "confidence_head_with_markov": config.confidence_with_markov,
    }


def _read_feature_layers(hf: dict[str, Any]) -> tuple[int, ...]:
    layers, limit = hf.get("target_layer_ids"), hf.get("num_target_layers") or float("inf")
    rising = layers and all(a < b for a, b in zip(layers, layers[1:], strict=False))
    if not rising or layers[0] < EMBEDDINGS or layers[-1] >= limit:
        raise ValueError(
            f"config.json: target_layer_ids must be ascending layers, -1 (the embeddings) to "
            f"{limit - 1}, not {layers!r}"
        )
    return tuple(layers)


def speculators_config(hf: dict[str, Any]) -> DSparkConfig:
    """Read the `DSparkConfig` of a config.json in the speculators schema.

    Raises:
      ValueError: a field is missing, a setting is not supported, or readers disagree about the
        default of a setting that the file leaves out.
    """
    if not isinstance(hf.get("sample_from_anchor"), bool):
        raise ValueError(
            "config.json lacks 'sample_from_anchor', and readers disagree about its default: add "
            "true (the anchor's slot proposes the first token, as in DeepSpec) or false (as in "
            "DFlash), as the drafter was trained"
        )
    return make_config(
        **speculators.read_block(hf, first_id=0),
        **read_heads(_DEFAULTS | hf, confidence=True),
        sample_from_anchor=hf["sample_from_anchor"],
    )


def speculators_config_to_hf(config: DSparkConfig, about: About, dtype: str) -> dict[str, Any]:
    """Make a config.json that speculators and vLLM read as `config`.

    Raises:
      ValueError: the target's name is unknown, or the schema cannot describe the attention.
    """
    if not speculators.describes_attention(config):
        raise ValueError(
            "the speculators schema has no flag for full-attention layers that are causal inside "
            "the block: write this drafter in the native layout (--to dspark)"
        )
    hf = speculators.speculators_config_to_hf(config, about, dtype, TYPE, SPECULATORS_ARCHITECTURE)
    return hf | {
        "sample_from_anchor": config.sample_from_anchor,
        **heads_to_hf(config),
        "jaxspec": hf["jaxspec"] | fitted_to_hf(config),
    }
