"""Find the target layers that a drafter's files name, in any of the conventions in use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

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
