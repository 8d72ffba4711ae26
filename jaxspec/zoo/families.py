"""Which family a checkpoint belongs to, also those that cannot be decoded with yet, and which
target layers it reads.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from jaxspec.drafters.dflash.hf_config import default_feature_layers

OUTPUT, INPUT = "output", "input"
# Families with no published layout, by the architecture that this library writes.
_OWN = {"ParallelSpecDrafter": "parallelspec", "FalconDrafter": "falcon"}


class Layers(NamedTuple):
    """Target layers that a drafter reads.

    Attributes:
      outputs: 0-based layers whose outputs they are, or None where the checkpoint does not tell.
      source: the field that they come from.
      convention: what that field counts, `output` or `input` of a layer; empty where there is no
        such field.
      note: what to be careful about, or an empty string.
    """

    outputs: tuple[int, ...] | None
    source: str
    convention: str = OUTPUT
    note: str = ""


def family(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name of the family: by config.json first, by tensor names where that says nothing.

    One of dflash, jetspec, dflash2, dspark, eagle3, peagle, mtp, specblock, medusa, parallelspec,
    falcon, target, or `unknown`.
    """
    kind = hf.get("speculators_model_type")
    if kind is not None:
        return str(kind)
    architecture = str((hf.get("architectures") or [""])[0])
    own = hf.get("dflash_config") or {}
    if "DSpark" in architecture or "markov_rank" in hf:
        return "dspark"
    if "DFlash2" in architecture or "selector_rank" in own:
        return "dflash2"
    if "DFlash" in architecture or own or hf.get("speculation_type") == "dflash":
        return "jetspec" if own.get("causal_head") or own.get("causal") else "dflash"
    if architecture in _OWN:
        return _OWN[architecture]
    if "SpecBlock" in architecture or "diffspec_draft_token_num" in hf or "rank_classes" in hf:
        return "specblock"
    if "medusa_num_heads" in hf or "Medusa" in architecture or hf.get("model_type") == "medusa":
        return "medusa"
    # Some published EAGLE-3 drafters call themselves LlamaForCausalLM.
    if (
        "Eagle3" in architecture
        or "eagle_config" in hf
        or ("draft_vocab_size" in hf and "fc.weight" in names)
    ):
        return "eagle3"
    return "target" if architecture.endswith("ForCausalLM") else "unknown"


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Which of a family's several layouts the files are in."""
    if "speculators_model_type" in hf:
        return f"speculators {hf.get('speculators_version', '')}".strip()
    found = family(hf, names)
    if found in ("dflash", "jetspec"):
        if "speculation_type" in hf or any(name.startswith("encoder.") for name in names):
            return "transformers"
        return "native (z-lab DFlash)" if "dflash_config" in hf else "flat"
    if found == "eagle3":
        layer = "midlayer" if any(name.startswith("midlayer.") for name in names) else "layers.0"
        return f"native ({layer}{', NVIDIA eagle_config' if 'eagle_config' in hf else ''})"
    if found == "medusa":
        return "vLLM" if "medusa_num_heads" not in hf else "original"
    return "native"


def feature_layers(hf: dict[str, Any], found: str) -> Layers:
    """The target layers that a drafter of family `found` reads, whatever convention its config.json
    counts them in.
    """
    if found == "medusa":
        return Layers(None, "none: the heads read the target's last hidden state", "")
    if hf.get("aux_hidden_state_layer_ids"):
        return _inputs(hf["aux_hidden_state_layer_ids"], "aux_hidden_state_layer_ids")
    nested = (hf.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if nested:
        note = "SGLang, NVIDIA and SpecForge count outputs in this field; vLLM reads the same numbers as inputs"
        return Layers(tuple(nested), "eagle_config.eagle_aux_hidden_state_layer_ids", note=note)
    if hf.get("eagle_aux_hidden_state_layer_ids"):
        return _inputs(hf["eagle_aux_hidden_state_layer_ids"], "eagle_aux_hidden_state_layer_ids")
    own = (hf.get("dflash_config") or {}).get("target_layer_ids")
    if own:
        return Layers(tuple(own), "dflash_config.target_layer_ids")
    if hf.get("target_layer_ids"):
        return Layers(tuple(hf["target_layer_ids"]), "target_layer_ids")
    return _default(hf, found)


def _inputs(ids: list[int], field: str) -> Layers:
    note = "" if min(ids) > 0 else "id 0 is the embedding, which is no layer's output"
    return Layers(tuple(i - 1 for i in ids), field, INPUT, note)


def _default(hf: dict[str, Any], found: str) -> Layers:
    """What readers assume where config.json names no layers."""
    stated = (hf.get("jaxspec") or {}).get("feature_layers")
    if stated and found in ("specblock", *_OWN.values()):
        return Layers(tuple(stated), "jaxspec.feature_layers")
    count = hf.get("num_target_layers")
    if found in ("dflash", "jetspec", "dflash2") and count:
        return Layers(
            default_feature_layers(count, hf["num_hidden_layers"]), "default for num_target_layers"
        )
    if found in ("eagle3", "specblock", "peagle"):
        default = "default of a target of N layers: inputs of layers 2, N//2, N-3 (outputs of 1, N//2-1, N-4)"
        return _inputs([2, count // 2, count - 3], default) if count else Layers(None, default, "")
    return Layers(None, "not given", "")
