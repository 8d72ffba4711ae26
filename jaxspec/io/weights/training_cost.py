"""The cost of training a drafter, as its config.json records it in the `jaxspec` object."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path

from jaxspec.io.files.atomic import write_text
from jaxspec.io.files.safetensors_files import read_json

# Optimizer steps; rows that they read; tokens in these rows; minutes of training, on any machine.
KEYS = ("steps", "rows", "tokens", "minutes")


def read_training_cost(directory: str | os.PathLike) -> dict[str, float] | None:
    """Read the cost of training from a drafter's directory: numbers by `KEYS`, or None."""
    own = read_json(Path(directory) / "config.json").get("jaxspec")
    found = own.get("training") if isinstance(own, dict) else None
    if not isinstance(found, dict):
        return None
    return {key: found[key] for key in KEYS if isinstance(found.get(key), int | float)} or None


def write_training_cost(directory: str | os.PathLike, cost: Mapping[str, float]) -> None:
    """Add the cost of training to the config.json in `directory`.

    Raises:
      ValueError: a key is not one of `KEYS`.
    """
    unknown = [key for key in cost if key not in KEYS]
    if unknown:
        raise ValueError(f"unknown part of a training cost {unknown[0]!r}: give {', '.join(KEYS)}")
    path = Path(directory) / "config.json"
    hf = read_json(path)
    own = hf.get("jaxspec") or {}
    write_text(path, json.dumps(hf | {"jaxspec": own | {"training": dict(cost)}}, indent=2) + "\n")
