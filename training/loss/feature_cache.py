"""An optional store of the target's states on disk, for data that is read many times.

Training computes the target's features on the fly, which costs one target forward per step and no
disk. If the same rows are read for many epochs, or by many runs, storing all states may be cheaper.
The store says how large it will be before it is written.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import jax
import ml_dtypes
import numpy as np
from tqdm import tqdm

from jaxspec.core.config import TargetConfig
from jaxspec.round.quick_jit import quick_jit

from ..data.documents import DataError
from ..data.packing import PackedRows
from .teacher import TeacherStates, compute_teacher_states, find_best_tokens

_DONE = "complete.json"


def with_cached_states(
    batches: Callable,
    folder: Path,
    rows: PackedRows,
    config: TargetConfig,
    target,
    feature_layers,
    batch_size: int = 8,
) -> Callable:
    """Add the target's states to batches, read from `folder`: see
    `training.loss.teacher.TeacherStates`.

    `features` [B, S, F] and `hidden` [B, S, E] are in bfloat16, which keeps 8 bits of each number;
    `best` is int32 [B, S]. They are computed and written first if they are not there.

    Args:
      batches: `batches(step) -> dict` with `rows` int32 [B] among the arrays.
      folder: folder of the store; several runs on the same rows may share it.
      rows: all rows, numbered as in the batches.
      config, target: description and variables of the target.
      feature_layers: layers whose outputs are features.
      batch_size: number of rows per target forward while writing.

    Raises:
      DataError: the disk is too small, or `folder` holds states of other rows or of another target.
    """
    key = _key(rows, target, feature_layers)
    shapes = {"features": config.hidden_size * len(feature_layers), "hidden": config.hidden_size}
    if not (folder / _DONE).is_file():
        _write(folder, key, rows, config, target, tuple(feature_layers), shapes, batch_size)
    elif json.loads((folder / _DONE).read_text()) != key:
        raise DataError(
            f"{folder} holds the states of other data or of another target: "
            "give another --cache-features"
        )
    stored = {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in shapes}
    best = np.load(folder / "best.npy")

    def at(step: int):
        batch = batches(step)
        found = {
            name: array[batch["rows"]].view(ml_dtypes.bfloat16) for name, array in stored.items()
        }
        return {**batch, **found, "best": best[batch["rows"]]}

    return at


def _key(rows: PackedRows, target, feature_layers) -> dict:
    """Fingerprint everything that the states depend on."""
    digest = hashlib.sha256()
    for array in (*rows[:3], *map(np.asarray, jax.tree.leaves(target))):
        digest.update(np.ascontiguousarray(array).tobytes())
    return {
        "rows_and_target_sha256": digest.hexdigest(),
        "feature_layers": list(feature_layers),
        "holds": ["features", "hidden", "best"],
    }


def _write(
    folder: Path,
    key,
    rows: PackedRows,
    config,
    target,
    feature_layers,
    shapes: dict[str, int],
    batch_size: int,
) -> None:
    count, length = rows.tokens.shape
    size = 2 * count * length * sum(shapes.values())
    folder.mkdir(parents=True, exist_ok=True)
    free = shutil.disk_usage(folder).free
    tqdm.write(
        f"feature cache: {size / 1e9:.2f} GB for {count} rows in {folder} ({free / 1e9:.1f} GB "
        "free)"
    )
    if size > free:
        raise DataError(
            f"the feature cache needs {size / 1e9:.2f} GB and {folder} has "
            f"{free / 1e9:.2f} GB: train without --cache-features"
        )
    # 16-bit words: the .npy format has no bfloat16.
    files = {
        name: np.lib.format.open_memmap(
            folder / f"{name}.npy", "w+", np.uint16, (count, length, width)
        )
        for name, width in shapes.items()
    }
    files["best"] = np.lib.format.open_memmap(folder / "best.npy", "w+", np.int32, (count, length))

    @quick_jit()
    def states_of(target, batch) -> TeacherStates:
        states = compute_teacher_states(config, target, feature_layers, batch)
        return states._replace(best=find_best_tokens(config, target, states.hidden))

    for start in tqdm(range(0, count, batch_size), desc="feature cache", unit="batch"):
        # Fill the last batch up with rows that are written again, so that one shape is compiled.
        index = np.minimum(np.arange(start, start + batch_size), count - 1)
        batch = {name: getattr(rows, name)[index] for name in ("tokens", "positions", "segments")}
        states = states_of(target, batch)
        files["best"][index] = states.best
        for name in shapes:
            values = getattr(states, name).astype("bfloat16")
            files[name][index] = np.asarray(values).view(np.uint16)
    for file in files.values():
        file.flush()
    (folder / _DONE).write_text(json.dumps(key))
