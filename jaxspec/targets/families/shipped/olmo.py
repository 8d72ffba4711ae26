"""OLMo 2 and 3: norms over results instead of inputs, and over all heads of queries and of keys."""

from __future__ import annotations

import dataclasses
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.core.rope import Rope
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import Getter, GgufFamily
from jaxspec.targets.families.hf_fields import integer, read_head_dim
from jaxspec.targets.families.hf_rope import describe_rope, differs, read_rope
from jaxspec.targets.families.layer_types import (
    FULL,
    SLIDING,
    read_types,
    read_windows,
    write_windows,
)

_NORMS = {"norms": "post", "norm_wide": True, "qk_norm_whole": True}
_THETA = 500000.0


def _read_olmo3(hf: dict[str, Any]) -> dict[str, Any]:
    return _NORMS | {"rope": read_rope(hf, read_head_dim(hf), theta=_THETA)}


def _read_layers(hf: dict[str, Any]) -> list[dict[str, Any]]:
    """Read windows, three layers of four; those layers rotate without YaRN."""
    count = integer(hf, "num_hidden_layers")
    types = read_types(hf, [FULL if (i + 1) % 4 == 0 else SLIDING for i in range(count)])
    full = read_rope(hf, read_head_dim(hf), theta=_THETA)
    sliding = Rope(full.theta)
    if differs(hf):
        sliding = read_rope(hf, read_head_dim(hf), SLIDING, full.theta)
    windows = read_windows(hf, types) or [{"window": None}] * count
    ropes = {FULL: full, SLIDING: sliding}
    return [window | {"rope": ropes[kind]} for window, kind in zip(windows, types, strict=True)]


def _write(config: TargetConfig) -> dict[str, Any]:
    sliding = next((layer.rope for layer in config.list_layers() if layer.window), None)
    ropes = {FULL: describe_rope(config.rope)}
    ropes[SLIDING] = describe_rope(sliding or dataclasses.replace(config.rope, scaling=None))
    return {"rope_parameters": ropes, "rope_scaling": None} | write_windows(config)


_NAMES = {
    "post_attention_norm": "post_attention_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}


def _read_gguf(get: Getter) -> dict[str, Any]:
    if get("attention.sliding_window", 0):
        raise ValueError("OLMo 3 in GGUF is not supported: use its files in Hugging Face layout")
    return {}


OLMO2 = TargetFamily(
    name="olmo2",
    architecture="Olmo2ForCausalLM",
    defaults={"rms_norm_eps": 1e-5},
    qk_norm=True,
    read=lambda hf: _NORMS,
    gguf=GgufFamily("olmo2", layers=_NAMES, read=_read_gguf),
)
OLMO3 = TargetFamily(
    name="olmo3",
    architecture="Olmo3ForCausalLM",
    defaults={"rms_norm_eps": 1e-5, "sliding_window": 4096},
    qk_norm=True,
    read=_read_olmo3,
    read_layers=_read_layers,
    write=_write,
)
