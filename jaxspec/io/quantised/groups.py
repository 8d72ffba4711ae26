"""Find which group of compressed-tensors' config.json a module belongs to."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from jaxspec.io.quantised.module import Module

_LAYOUTS = (
    "dense",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "pack-quantized",
    "mixed-precision",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)


def check_groups(settings: Mapping[str, Any]) -> None:
    """Refuse settings that are not supported.

    Raises:
      ValueError: an unknown layout, sparse weights, or a group without `targets` and `num_bits`.
    """
    groups = settings.get("config_groups")
    if not isinstance(groups, dict) or not all(map(_is_group, groups.values())):
        raise ValueError(
            "config.json: config_groups must be groups with targets and weights.num_bits; "
            "download it again"
        )
    sparse = (settings.get("sparsity_config") or {}).get("format", "dense")
    formats = [settings.get("format"), sparse, *(one.get("format") for one in groups.values())]
    unknown = [one for one in formats if one is not None and one not in _LAYOUTS]
    if unknown:
        raise ValueError(
            f"config.json: compressed-tensors' format {unknown[0]!r} is not read (read: "
            f"{', '.join(_LAYOUTS)}): use the full weights, with quantize='int8' for a byte each"
        )


def _is_group(group: Any) -> bool:
    if not isinstance(group, dict):
        return False
    targets, weights = group.get("targets"), group.get("weights")
    named = isinstance(targets, list) and all(isinstance(one, str) for one in targets)
    sized = isinstance(weights, dict) and weights.get("num_bits") in range(1, 9)
    return named and (weights is None or sized)


def find_weights(settings: Mapping[str, Any], module: Module) -> Mapping[str, Any]:
    """Return how the weights of a module are quantised.

    A group may name modules, in full or by a pattern, or a class. The most special one counts.

    Raises:
      ValueError: no group covers the module, or it is to be ignored.
    """
    if any(_covers(one, module.stem) for one in settings.get("ignore") or ()):
        raise module.refuse("it is quantised, and quantization_config ignores it")
    best = sorted(
        (rank, name)
        for name, group in settings["config_groups"].items()
        if group.get("weights") is not None
        for rank in (_rank(target, module.stem) for target in group["targets"])
        if rank is not None
    )
    if not best:
        raise module.refuse("it is quantised, and no group of quantization_config covers it")
    return settings["config_groups"][best[0][1]]["weights"]


def _covers(target: str, stem: str) -> bool:
    return _rank(target, stem) in (0, 1)


def _rank(target: str, stem: str) -> int | None:
    """Rank a target that covers a module: 0 its name, 1 a pattern, 2 its class; None: another."""
    if target.startswith("re:"):
        return 1 if re.match(target[3:], stem) else None
    if target == stem:
        return 0
    own = "Embedding" if stem.rpartition(".")[2] == "embed_tokens" else "Linear"
    return 2 if target == own else None
