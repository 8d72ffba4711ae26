"""Which target layers a drafter's files say that it reads, whatever they count."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

OUTPUT, INPUT = "output", "input"


class Layers(NamedTuple):
    """Target layers that a drafter reads.

    Attributes:
      outputs: 0-based layers whose outputs they are, or None where the checkpoint does not say.
      source: the field that they come from.
      convention: what that field counts, `output` or `input` of a layer; empty where there is no
        such field.
      note: what to be careful about, or an empty string.
    """

    outputs: tuple[int, ...] | None
    source: str
    convention: str = OUTPUT
    note: str = ""


def layer_inputs(ids: Sequence[int], field: str) -> Layers:
    """Layers of a field whose ids name inputs of layers: id i is the output of layer i - 1."""
    note = "" if min(ids) > 0 else "id 0 is the embedding, which is no layer's output"
    return Layers(tuple(i - 1 for i in ids), field, INPUT, note)


def own_layers(hf: dict[str, Any]) -> Layers | None:
    """Layers that the `jaxspec` object of a config.json states."""
    stated = (hf.get("jaxspec") or {}).get("feature_layers")
    return Layers(tuple(stated), "jaxspec.feature_layers") if stated else None
