"""SmolLM3: Llama's layers, of which every fourth does not rotate queries and keys."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import GgufFamily
from jaxspec.targets.families.hf_fields import integer, read_head_dim
from jaxspec.targets.families.hf_rope import read_rope
from jaxspec.targets.families.layer_types import FULL, read_types, read_windows, write_windows


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    count, every = integer(hf, "num_hidden_layers"), integer(hf, "no_rope_layer_interval", 4)
    rotated = hf.get("no_rope_layers")  # 1 for layers that rotate
    if rotated is None:
        rotated = [int((i + 1) % every != 0) for i in range(count)]
    if len(rotated) != count:
        raise ValueError(f"config.json: no_rope_layers lists {len(rotated)} of {count} layers")
    types = read_types(hf) if hf.get("use_sliding_window") else [FULL] * count
    windows = read_windows(hf, types) or [{} for _ in range(count)]
    return [
        window | ({} if turns else {"rope": None})
        for window, turns in zip(windows, rotated, strict=True)
    ]


def _write(config: TargetConfig) -> dict[str, Any]:
    rotated = [int(layer.rope is not None) for layer in config.list_layers()]
    return {"no_rope_layers": rotated} | write_windows(config)


SMOLLM3 = TargetFamily(
    name="smollm3",
    architecture="SmolLM3ForCausalLM",
    defaults={"num_key_value_heads": 4, "tie_word_embeddings": True},
    read=lambda hf: {"rope": read_rope(hf, read_head_dim(hf), theta=2e6)},
    read_layers=_read_layers,
    write=_write,
    gguf=GgufFamily("smollm3", permuted=True),
)
