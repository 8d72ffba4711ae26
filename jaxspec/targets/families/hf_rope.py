"""Rotary position embeddings in config.json, in the spellings of transformers 4 and 5."""

from __future__ import annotations

import math
from typing import Any

from jaxspec.core.rope import (
    LinearScaling,
    Llama3Scaling,
    LongRopeScaling,
    ProportionalScaling,
    Rope,
    RopeScaling,
    YarnScaling,
)

# Older files say `su` or, Phi-3's, `yarn` for longrope; `mrope` means three equal positions of text.
_KINDS = {"su": "longrope", "mrope": "default"}
_YARN = "factor max_position_embeddings"
_LONGROPE = "short_factor long_factor original_max_position_embeddings"
_LLAMA3 = "factor low_freq_factor high_freq_factor original_max_position_embeddings"


def read_rope(
    hf: dict[str, Any], head_dim: int, layer_type: str | None = None, theta: float = 10000.0
) -> Rope:
    """Read RoPE from `rope_parameters` (transformers 5) or `rope_theta` and `rope_scaling` (4).

    Args:
      hf: config.json.
      head_dim: width of a head.
      layer_type: of the layers whose settings are wanted, where layers differ; None: of those
        whose attention is full.
      theta: base of a family whose files may leave it out.

    Raises:
      ValueError: a setting is missing or not supported.
    """
    entries = _find_entries(hf, layer_type or "full_attention")
    theta = float(entries.get("rope_theta") or hf.get("rope_theta") or theta)
    kind = entries.get("rope_type") or entries.get("type") or "default"
    kind = _KINDS.get(kind, kind)
    share = entries.get("partial_rotary_factor", hf.get("partial_rotary_factor"))
    share = 1.0 if share is None else float(share)
    if not 0 < share <= 1:
        raise ValueError(f"config.json: partial_rotary_factor {share} is not above 0 and at most 1")
    if kind == "yarn" and "short_factor" in entries:
        kind = "longrope"
    if kind == "proportional":
        return Rope(theta, ProportionalScaling(share, float(entries.get("factor", 1.0))))
    if int(head_dim * share) % 2:
        raise ValueError(
            f"config.json: partial_rotary_factor {share} rotates an odd number of the {head_dim} "
            "components of a head; rotary positions need pairs"
        )
    if kind not in _SCALINGS:
        raise ValueError(
            f"config.json: rope type {kind!r} is not supported (supported: "
            f"{', '.join(map(repr, (*_SCALINGS, 'proportional')))})"
        )
    return Rope(theta, _SCALINGS[kind](entries, hf), share)


def differs(hf: dict[str, Any]) -> bool:
    """Whether config.json states RoPE by type of layer."""
    return any(isinstance(value, dict) for value in (hf.get("rope_parameters") or {}).values())


def write_rope(rope: Rope | None) -> dict[str, Any]:
    """Write the entries that `read_rope` reads.

    Both spellings are written, since each serving engine knows only one of them.
    """
    if rope is None:
        return {}
    scaling = describe_rope(rope)
    theta = scaling.pop("rope_theta")
    share = {} if rope.share == 1 else {"partial_rotary_factor": rope.share}
    plain = rope.scaling is None
    return {
        "rope_theta": theta,
        "rope_scaling": None if plain else scaling,
        "rope_parameters": {**scaling, "rope_theta": theta, **share},
    } | share


def describe_rope(rope: Rope) -> dict[str, Any]:
    """Write one object of `rope_parameters`."""
    found: dict[str, Any] = {"rope_type": "default", "rope_theta": rope.theta}
    match rope.scaling:
        case None:
            pass
        case LinearScaling(factor):
            found |= {"rope_type": "linear", "factor": factor}
        case Llama3Scaling(factor, low, high, positions):
            found |= {"rope_type": "llama3", "factor": factor}
            found |= {"low_freq_factor": low, "high_freq_factor": high}
            found |= {"original_max_position_embeddings": positions}
        case YarnScaling() as yarn:
            found |= {"rope_type": "yarn", "factor": yarn.factor, "truncate": yarn.truncate}
            found |= {"beta_fast": yarn.beta_fast, "beta_slow": yarn.beta_slow}
            found |= {"attention_factor": yarn.magnitude}
            found |= {"original_max_position_embeddings": yarn.original_max_positions}
        case LongRopeScaling(short, long, positions, magnitude):
            found |= {"rope_type": "longrope", "attention_factor": magnitude}
            found |= {"short_factor": list(short), "long_factor": list(long)}
            found |= {"original_max_position_embeddings": positions}
        case ProportionalScaling(share, factor):
            found |= {"rope_type": "proportional", "partial_rotary_factor": share}
            found |= {"factor": factor}
    return found


def _find_entries(hf: dict[str, Any], layer_type: str) -> dict[str, Any]:
    """Return the entries of a type of layers; those of transformers 5 have precedence."""
    new = hf.get("rope_parameters") or {}
    if differs(hf):
        new = new.get(layer_type) or {}
    found = {**(hf.get("rope_scaling") or {}), **new}
    original = hf.get("original_max_position_embeddings")
    return found | ({"original_max_position_embeddings": original} if original else {})


def _need(entries: dict[str, Any], kind: str, names: str) -> None:
    missing = [name for name in names.split() if entries.get(name) is None]
    if missing:
        raise ValueError(f"config.json: rope type {kind!r} needs {', '.join(missing)}")


def _read_linear(entries: dict[str, Any], hf: dict[str, Any]) -> RopeScaling:
    _need(entries, "linear", "factor")
    return LinearScaling(float(entries["factor"]))


def _read_llama3(entries: dict[str, Any], hf: dict[str, Any]) -> RopeScaling:
    _need(entries, "llama3", _LLAMA3)
    *numbers, positions = (entries[name] for name in _LLAMA3.split())
    return Llama3Scaling(*map(float, numbers), int(positions))


def _read_yarn(entries: dict[str, Any], hf: dict[str, Any]) -> RopeScaling:
    longest = hf.get("max_position_embeddings")
    # transformers takes these two where a file leaves them out.
    original = entries.get("original_max_position_embeddings") or longest
    factor = entries.get("factor") or (longest and longest / original)
    _need({"factor": factor, "max_position_embeddings": original}, "yarn", _YARN)
    factor = float(factor)
    return YarnScaling(
        factor,
        int(original),
        float(entries.get("beta_fast") or 32),
        float(entries.get("beta_slow") or 1),
        _read_magnitude(entries, factor),
        bool(entries.get("truncate", True)),
    )


def _read_magnitude(entries: dict[str, Any], factor: float) -> float:
    """Return the factor of YaRN's cosines and sines (YaRN, section 3.4; DeepSeek-V2's `mscale`)."""
    if entries.get("attention_factor") is not None:
        return float(entries["attention_factor"])

    def grow(scale: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * scale * math.log(factor) + 1.0

    if entries.get("mscale") and entries.get("mscale_all_dim"):
        return grow(entries["mscale"]) / grow(entries["mscale_all_dim"])
    return grow(1.0)


def _read_longrope(entries: dict[str, Any], hf: dict[str, Any]) -> RopeScaling:
    _need(entries, "longrope", _LONGROPE)
    original = int(entries["original_max_position_embeddings"])
    factor = entries.get("factor") or (hf.get("max_position_embeddings") or original) / original
    magnitude = entries.get("attention_factor")
    if magnitude is None:
        magnitude = math.sqrt(1 + math.log(factor) / math.log(original)) if factor > 1 else 1.0
    short, long = (tuple(map(float, entries[f"{name}_factor"])) for name in ("short", "long"))
    return LongRopeScaling(short, long, original, float(magnitude))


_SCALINGS = {
    "default": lambda entries, hf: None,
    "linear": _read_linear,
    "llama3": _read_llama3,
    "yarn": _read_yarn,
    "longrope": _read_longrope,
}
