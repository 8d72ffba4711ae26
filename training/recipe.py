"""What decides the result of a drafter's training, as JSON: a run with another recipe is refused."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import math
from pathlib import Path

from .data.packing import PackedRows
from .drafters import named


def describe_recipe(options, rows: PackedRows, config) -> dict:
    """Describe everything that decides the result, as JSON.

    A checkpoint made with another recipe is not continued.

    Args:
      options: `training.train_drafter.DrafterOptions`.
      rows: the packed data.
      config: of the drafter.
    """
    plain = json.loads(json.dumps(dataclasses.asdict(options), default=str))
    left_out = ("loop", "out", "eval", "dry_run", "preview", "cache_features")
    recipe = {name: value for name, value in plain.items() if name not in left_out}
    # Files may move, but their content must not change.
    recipe["target"] = _name(options.target)
    recipe["init"] = options.init and options.init.name
    recipe["data"] |= {
        "files": [Path(name).name for name in recipe["data"]["files"]],
        "fingerprint": fingerprint_rows(rows),
    }
    del recipe["data"]["roles"]  # the content tells
    own = named(options.model.kind).take_options(options.method)
    if own is None:
        del recipe["method"]
    else:
        recipe["method"] = json.loads(json.dumps(dataclasses.asdict(own), default=str))
    return recipe | {
        "steps": options.loop.steps,
        "drafter": json.loads(json.dumps(dataclasses.asdict(config))),
    }


def with_steps(options, rows: PackedRows):
    """Return the options with the steps that their epochs are.

    Args:
      options: `training.train_drafter.DrafterOptions`.
      rows: the packed data.

    Raises:
      ValueError: the epochs are not above 0.
    """
    if options.epochs is None:
        return options
    if not options.epochs > 0:
        raise ValueError(f"epochs is {options.epochs}: give a number above 0, or loop.steps alone")
    steps = math.ceil(options.epochs * len(rows.tokens) / options.batch)
    return dataclasses.replace(options, loop=dataclasses.replace(options.loop, steps=steps))


def fingerprint_rows(rows: PackedRows) -> str:
    """Compute a checksum of the packed rows."""
    digest = hashlib.sha256()
    for array in rows:
        digest.update(array.tobytes())
    return digest.hexdigest()[:16]


def _name(target: str) -> str:
    """Name the target: `mini` or a hub id as it is, or the last part of a folder."""
    return Path(target).name if Path(target).is_dir() else target
