"""Recognise the family of a checkpoint and the target layers that it reads.

Families that jaxspec cannot decode with are recognised too.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

from jaxspec.drafters.hf_fields import Layers, layer_inputs
from jaxspec.drafters.record import DrafterRecord
from jaxspec.drafters.registry import named, records

# Recognised families that jaxspec cannot decode with: {family: drafter that names its layers in the
# same way}.
UNREADABLE = {"peagle": "eagle3", "mtp": None}


def family(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the family of a checkpoint, by its config.json first and by tensor names second.

    Returns:
      The name of a registered drafter, one of `UNREADABLE`, `target` or `unknown`.
    """
    kind = hf.get("speculators_model_type")
    if kind is not None:
        return str(kind)
    architecture = str((hf.get("architectures") or [""])[0])
    for record in reversed(records()):
        files = record.files
        # A plain language model can draft, but counts as a target.
        if files is None or record.assistant:
            continue
        if files.matches(hf) if files.recognise is None else files.recognise(hf, names):
            return record.name
    is_model = architecture.endswith(("ForCausalLM", "ForConditionalGeneration"))
    return "target" if is_model else "unknown"


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the layout of the files, for families with several layouts."""
    if "speculators_model_type" in hf:
        return f"speculators {hf.get('speculators_version', '')}".strip()
    found = _drafter(family(hf, names))
    return found.files.layout(hf, names) if found else "native"


def feature_layers(hf: dict[str, Any], found: str) -> Layers:
    """Find the target layers that a drafter reads, whatever convention its config.json uses.

    Args:
      hf: config.json.
      found: the drafter's family.
    """
    if hf.get("aux_hidden_state_layer_ids"):
        return layer_inputs(hf["aux_hidden_state_layer_ids"], "aux_hidden_state_layer_ids")
    nested = (hf.get("eagle_config") or {}).get("eagle_aux_hidden_state_layer_ids")
    if nested:
        note = "SGLang, NVIDIA and SpecForge count outputs in this field; vLLM reads the same numbers as inputs"
        return Layers(tuple(nested), "eagle_config.eagle_aux_hidden_state_layer_ids", note=note)
    if hf.get("eagle_aux_hidden_state_layer_ids"):
        return layer_inputs(
            hf["eagle_aux_hidden_state_layer_ids"], "eagle_aux_hidden_state_layer_ids"
        )
    own = (hf.get("dflash_config") or {}).get("target_layer_ids")
    if own:
        return Layers(tuple(own), "dflash_config.target_layer_ids")
    if hf.get("target_layer_ids"):
        return Layers(tuple(hf["target_layer_ids"]), "target_layer_ids")
    return _default(hf, found)


def _default(hf: dict[str, Any], found: str) -> Layers:
    """Return the layers that readers assume if config.json names none."""
    like = _drafter(UNREADABLE.get(found) or found)
    layers = like.files.default_layers(hf) if like else None
    return layers or Layers(None, "not given", "")


def _drafter(name: str) -> DrafterRecord | None:
    """Return the record called `name` if its drafter has files, else None."""
    record = named(name) if name in {record.name for record in records()} else None
    return record if record and record.files else None
