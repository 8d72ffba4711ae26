"""Checkpoints of a given size with random weights, to load."""

from __future__ import annotations

import dataclasses
import json
import math
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np

from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.core.config import TargetConfig
from jaxspec.io.files.safetensors_files import INDEX, WEIGHTS, write_safetensors
from jaxspec.targets.families.hf_config import target_config_to_hf
from jaxspec.targets.weights import target_leaves

# Stored dtype, that of most published checkpoints.
DTYPE = np.dtype(ml_dtypes.bfloat16)
# Largest first. Each is used if at least this many of its layers fit.
_SIZES = ("qwen3-8b", "qwen3-0.6b", "mini")
_LEAST_LAYERS = 4


def choose_config(gigabytes: float) -> TargetConfig:
    """Choose a target of about this size: a published architecture with another number of layers.

    Args:
      gigabytes: bytes of all bfloat16 weights / 1e9.

    Raises:
      ValueError: it is smaller than `mini` with one layer.
    """
    for name in _SIZES:
        config = dataclasses.replace(ARCHITECTURES[name], num_layers=1)
        least = count_bytes(config)
        layer = count_bytes(dataclasses.replace(config, num_layers=2)) - least
        layers = 1 + round((gigabytes * 1e9 - least) / layer)
        if layers >= (1 if name == _SIZES[-1] else _LEAST_LAYERS):
            return dataclasses.replace(config, num_layers=layers)
    raise ValueError(
        f"--gigabytes {gigabytes:g} is too small: the smallest model has {least / 1e9:.3f}"
    )


def count_bytes(config: TargetConfig, dtype: np.dtype = DTYPE) -> int:
    """Count the bytes of a target's weights, by default as they are stored."""
    return sum(math.prod(shape) for shape in _list_shapes(config).values()) * dtype.itemsize


def write_checkpoint(folder: Path, config: TargetConfig, shards: int) -> None:
    """Write config.json and random weights in safetensors files.

    Host memory holds the largest tensor once.

    Args:
      folder: an empty folder.
      config: sizes of the target.
      shards: number of files; tensors are in the order in which they are loaded.

    Raises:
      ValueError: the disk has no room for it.
    """
    size, free = count_bytes(config), shutil.disk_usage(folder).free
    if size > 0.95 * free:
        raise ValueError(
            f"{folder} has {free / 1e9:.1f} GB left, and the checkpoint needs {size / 1e9:.1f}: "
            "choose another --folder"
        )
    shapes = _list_shapes(config)
    values, homes, written = _draw_values(max(map(math.prod, shapes.values()))), {}, 0
    parts: list[dict[str, np.ndarray]] = [{} for _ in range(shards)]
    for name, shape in shapes.items():
        number = min(written * shards // size, shards - 1)
        parts[number][name] = values[: math.prod(shape)].reshape(shape)
        homes[name] = f"model-{number + 1:05}-of-{shards:05}.safetensors" if shards > 1 else WEIGHTS
        written += parts[number][name].nbytes
    for tensors in filter(None, parts):
        write_safetensors(folder / homes[next(iter(tensors))], tensors)
    if shards > 1:
        (folder / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    (folder / "config.json").write_text(json.dumps(target_config_to_hf(config, DTYPE.name)))


def _list_shapes(config: TargetConfig) -> dict[str, tuple[int, ...]]:
    parts = (part for leaf in target_leaves(config) for part in leaf.parts())
    return {name: shape for name, _, _, shape in parts}


def _draw_values(count: int) -> np.ndarray:
    """Draw values of about 0.02; every tensor begins with the same ones."""
    drawn = np.random.default_rng(0).normal(0, 0.02, min(count, 2**22)).astype(DTYPE)
    return np.resize(drawn.view(np.uint16), count).view(DTYPE)
