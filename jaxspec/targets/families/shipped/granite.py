"""Granite 3 and 4 (dense): Llama's layers with four factors."""

from __future__ import annotations

from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.targets.families.family import TargetFamily
from jaxspec.targets.families.gguf_family import Getter, GgufFamily


def _read(hf: dict[str, Any]) -> dict[str, Any]:
    return {
        "embedding_scale": float(hf.get("embedding_multiplier", 1.0)),
        "score_scale": float(hf.get("attention_multiplier", 1.0)),
        "residual_scale": float(hf.get("residual_multiplier", 1.0)),
        "logit_scale": 1 / float(hf.get("logits_scaling", 1.0)),
    }


def _write(config: TargetConfig) -> dict[str, Any]:
    return {
        "embedding_multiplier": config.embedding_scale,
        "attention_multiplier": config.score_scale,
        "residual_multiplier": config.residual_scale,
        "logits_scaling": 1 / config.logit_scale,
    }


def _read_gguf(get: Getter) -> dict[str, Any]:
    return {
        "embedding_multiplier": get("embedding_scale", 1.0),
        "attention_multiplier": get("attention.scale", 1.0),
        "residual_multiplier": get("residual_scale", 1.0),
        "logits_scaling": get("logit_scale", 1.0),
    }


GRANITE = TargetFamily(
    name="granite",
    architecture="GraniteForCausalLM",
    read=_read,
    write=_write,
    gguf=GgufFamily("granite", permuted=True, read=_read_gguf),
)
