"""Entries of config.json that drafters share, and the check that a drafter fits its target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from jaxspec.core.config import DrafterConfig, TargetConfig
from jaxspec.io.weights.draft_vocab import MAPPING
from jaxspec.io.weights.provenance import Provenance
from jaxspec.targets.families.hf_fields import integer, transformer_fields_to_hf

# Versions differ in nothing that is written here; readers want one to be named.
_SPECULATORS_VERSION = "0.5.0"
FEATURE_CONVENTION = "outputs of target layers, 0-based"


def own_fields(
    config: DrafterConfig, num_target_layers: int, provenance: Provenance | None
) -> dict[str, Any]:
    """Make the `jaxspec` object of a config.json, which other readers ignore.

    `feature_layers` repeats the layers in a stated convention, since engines disagree about which
    layers their fields mean.
    """
    return {
        "feature_convention": FEATURE_CONVENTION,
        "feature_layers": list(config.feature_layers),
        "num_target_layers": num_target_layers,
        "score_temperature": list(config.score_temperature),
        **({"builder": config.builder} if getattr(config, "builder", "") else {}),
        **(provenance or Provenance()).to_hf(),
    }


def sizes_to_hf(config: Any, max_positions: int, dtype: str) -> dict[str, Any]:
    """Make the entries of a config.json for a drafter's layers, vocabulary and target.

    Args:
      config: of a drafter that reads features of layers.
      max_positions: positions of the target.
      dtype: dtype of the weights.
    """
    return {
        **transformer_fields_to_hf(config, dtype),
        "vocab_size": config.vocab_size,
        "draft_vocab_size": config.draft_vocab_size or config.vocab_size,
        "target_hidden_size": config.target_hidden_size,
        "max_position_embeddings": max_positions,
        "tie_word_embeddings": False,
    }


def speculators_to_hf(
    kind: str, architecture: str, depth: int, provenance: Provenance | None, verifier: str | None
) -> dict[str, Any]:
    """Make the entries of a config.json in the speculators schema that all drafters share.

    Args:
      kind: the schema's name of the drafter.
      architecture: name of its class.
      depth: tokens that a round drafts.
      provenance: names the target, which readers load by this name.
      verifier: architecture of the target, such as `Qwen3ForCausalLM`; None if unknown.

    Raises:
      ValueError: the target's name is unknown.
    """
    if provenance is None or not provenance.target:
        raise ValueError(
            "the speculators schema names the target, and this drafter's is not known: "
            "give --target"
        )
    proposal = {"proposal_type": "greedy", "speculative_tokens": depth}
    return {
        "architectures": [architecture],
        "speculators_model_type": kind,
        "speculators_version": _SPECULATORS_VERSION,
        "speculators_config": {
            "algorithm": kind,
            "default_proposal_method": "greedy",
            "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
            "verifier": {
                "name_or_path": provenance.target,
                "architectures": [verifier] if verifier else [],
            },
        },
    }


def read_target_sizes(hf: dict[str, Any]) -> dict[str, Any]:
    """Read what a config.json says of target, vocabulary and scores, as fields of a config."""
    vocab = integer(hf, "vocab_size")
    return {
        "target_hidden_size": integer(hf, "target_hidden_size", integer(hf, "hidden_size")),
        "vocab_size": vocab,
        "draft_vocab_size": draft_vocab_size(hf, vocab),
        "score_temperature": score_temperature(hf),
    }


def draft_vocab_size(hf: dict, vocab_size: int) -> int | None:
    """Read `draft_vocab_size` of a config.json; None if it is absent or equals the target's
    `vocab_size`.
    """
    size = integer(hf, "draft_vocab_size", vocab_size)
    if size > vocab_size:
        raise ValueError(
            f"config.json: draft_vocab_size is {size}, more than the target's {vocab_size} tokens"
        )
    return None if size == vocab_size else size


def score_temperature(hf: dict) -> tuple[float, float]:
    """Read the divisors (greedy, sampled) of draft logits that this library writes to config.json.

    They are 1 if the file states none. A single number is used for both.
    """
    value = (hf.get("jaxspec") or {}).get("score_temperature", 1.0)
    pair = value if isinstance(value, list) else [value, value]
    if len(pair) != 2 or not all(isinstance(x, int | float) and x > 0 for x in pair):
        raise ValueError(
            f"config.json: jaxspec.score_temperature is {value!r}, and must be one or two numbers "
            "above 0"
        )
    return float(pair[0]), float(pair[1])


def read_builder(hf: dict) -> str:
    """Read the builder of calls that name none, which this library writes; empty: not stated."""
    found = (hf.get("jaxspec") or {}).get("builder", "")
    if not isinstance(found, str):
        raise ValueError(f"config.json: jaxspec.builder is {found!r}, and must be a spelling")
    return found


def check_fits(drafter: Any, target: TargetConfig, *, final_norm: bool = False) -> Any:
    """Return the config of a drafter of target features; ValueError unless it fits `target`.

    The drafter reads the target's features, mostly its embeddings, and often its output projection,
    so widths, vocabulary and layers must agree.

    Args:
      drafter: config of a drafter that reads features of layers.
      target: config of the target.
      final_norm: accept the number of layers as a layer id; it means the hidden state after the
        final norm (see `jaxspec.drafters.base.Drafter`).
    """
    wrong = []
    # A drafter with embeddings of its own may have a width of its own.
    width = drafter.target_hidden_size
    own = width if getattr(drafter, "own_embeddings", 0) else drafter.hidden_size
    if not own == width == target.hidden_size:
        wrong.append(
            f"its hidden size is {drafter.hidden_size} (made for a target of "
            f"{drafter.target_hidden_size}), "
            f"the target's {target.hidden_size}"
        )
    if drafter.vocab_size != target.vocab_size:
        wrong.append(
            f"its vocabulary has {drafter.vocab_size} tokens, the target's {target.vocab_size}"
        )
    beyond = [layer for layer in drafter.feature_layers if layer >= target.num_layers + final_norm]
    if beyond:
        wrong.append(
            f"it reads target layers {beyond}, the target has layers 0 to {target.num_layers - 1}"
        )
    if getattr(drafter, "mask_token_id", 0) >= target.vocab_size:
        wrong.append(
            f"its mask token {drafter.mask_token_id} is outside the target's {target.vocab_size} "
            "embedding rows"
        )
    if wrong:
        raise ValueError(
            f"the drafter does not fit the target: {'; '.join(wrong)}; use a drafter trained for "
            "this target"
        )
    return drafter


def main_dtype(tensors: Mapping[str, np.ndarray]) -> str:
    """Return the dtype in which most weights are stored, as config.json names it."""
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        if name in MAPPING:
            continue
        sizes[tensor.dtype.name] = sizes.get(tensor.dtype.name, 0) + tensor.size
    return max(sizes, key=sizes.__getitem__)


OUTPUT, INPUT = "output", "input"


class Layers(NamedTuple):
    """Target layers that a drafter reads.

    Attributes:
      outputs: 0-based layers whose outputs are read, or None if the checkpoint does not say.
      source: the field that states them.
      convention: whether that field names the `output` or the `input` of a layer; empty if there
        is no field.
      note: a caution for the user, or an empty string.
    """

    outputs: tuple[int, ...] | None
    source: str
    convention: str = OUTPUT
    note: str = ""


def layer_inputs(ids: Sequence[int], field: str) -> Layers:
    """Return the layers of a field that names layers' inputs: id i is the output of layer i - 1."""
    note = "" if min(ids) > 0 else "id 0 is the embedding, which is no layer's output"
    return Layers(tuple(i - 1 for i in ids), field, INPUT, note)


def own_layers(hf: dict[str, Any]) -> Layers | None:
    """Return the layers that the `jaxspec` object of a config.json states; None if it has none."""
    stated = (hf.get("jaxspec") or {}).get("feature_layers")
    return Layers(tuple(stated), "jaxspec.feature_layers") if stated else None
