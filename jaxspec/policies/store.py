"""Save and load policies: arrays with Orbax, everything else as JSON.

A policy fits one target, drafter and builder, and the round costs of one device. It is saved with
their names, and loading it for others warns. Files hold the tags of a policy's classes, see
`jaxspec.policies.registry.tagged`.
"""

from __future__ import annotations

import dataclasses
import json
import os
import shutil
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.costs.row_costs import RowCosts
from jaxspec.io.files.atomic import staging, write_text
from jaxspec.policies.protocol import Policy, PolicyConfig
from jaxspec.policies.registry import tag_of, tagged, tagged_class

HEADER, ARRAYS = "policy.json", "arrays"

tagged("policy")(Policy)
tagged("row-costs")(RowCosts)


@under_own_settings
def save_policy(
    policy: Policy, path: str | os.PathLike, about: Mapping[str, Any] | None = None
) -> None:
    """Write a policy and its learned state into the folder `path`, and replace a policy there.

    Args:
      policy: to save.
      path: folder.
      about: names of what it was trained for, as JSON: target, drafter, builder, device, the
        fingerprint of round costs and so on.

    Raises:
      ValueError: a part of the policy has no tag, or cannot be saved.
      ImportError: Orbax is not installed.
      OSError: it cannot be written.
    """
    checkpoints, arrays = _orbax(), []
    header = {"about": dict(about or {}), "policy": _encode(policy, arrays)}
    path = Path(path).absolute()
    with staging(path, last=HEADER) as folder:
        with checkpoints.StandardCheckpointer() as checkpointer:
            numbered = {str(i): np.asarray(array) for i, array in enumerate(arrays)}
            checkpointer.save(folder / ARRAYS, numbered or {"none": np.zeros(())})
        write_text(folder / HEADER, json.dumps(header, indent=1) + "\n")
        shutil.rmtree(path / ARRAYS, ignore_errors=True)  # its files do not go with the new ones


@under_own_settings
def load_policy(path: str | os.PathLike, *, about: Mapping[str, Any] | None = None) -> Policy:
    """Read a policy that `save_policy` wrote.

    Args:
      path: folder.
      about: names of what it will be used for; a warning names every saved entry that differs.

    Raises:
      FileNotFoundError: there is no policy.
      ValueError: the policy is damaged, or a part has an unknown tag.
      ImportError: Orbax is not installed.
    """
    checkpoints, path = _orbax(), Path(path).absolute()
    header = _header(path)
    _compare(header["about"], about or {}, path)
    with checkpoints.StandardCheckpointer() as checkpointer:
        shapes = checkpointer.metadata(path / ARRAYS)
        shapes = getattr(shapes, "item_metadata", shapes)
        like = {
            name: np.broadcast_to(np.zeros((), leaf.dtype), leaf.shape)
            for name, leaf in dict(shapes).items()
        }
        arrays = checkpointer.restore(path / ARRAYS, like)
    return _decode(header["policy"], arrays)


def load_about(path: str | os.PathLike) -> dict[str, Any]:
    """Read what the policy in the folder `path` was trained for, as given to `save_policy`.

    Raises:
      FileNotFoundError: there is no policy.
    """
    return _header(Path(path).absolute())["about"]


def _header(path: Path) -> dict[str, Any]:
    if not (path / HEADER).is_file():
        raise FileNotFoundError(f"no policy in {path}: {HEADER} is missing")
    return json.loads((path / HEADER).read_text())


def _compare(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    for name, value in wanted.items():
        if name in saved and saved[name] != value:
            warnings.warn(
                f"the policy in {path} was trained for {name} {saved[name]}, not {value}: "
                "it may choose badly; train it again "
                f"for this {name}, or measure it here with `python -m benchmarks policies`",
                stacklevel=3,
            )


def _encode(value: Any, arrays: list) -> Any:
    """Encode `value` as JSON; append arrays to `arrays` and replace them by their indices."""
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, jax.Array | np.ndarray | np.generic):
        arrays.append(value)
        return {"array": len(arrays) - 1}
    if isinstance(value, list):
        return [_encode(one, arrays) for one in value]
    if dataclasses.is_dataclass(value) or hasattr(value, "_fields"):
        names = getattr(value, "_fields", None) or [
            field.name for field in dataclasses.fields(value)
        ]
        fields = {name: _encode(getattr(value, name), arrays) for name in names}
        return {"tag": tag_of(type(value)), "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_encode(one, arrays) for one in value]}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(one, arrays) for name, one in value.items()}}
    raise ValueError(
        f"a policy holds a {type(value).__name__}, which cannot be saved: "
        "keep arrays, numbers and names in it"
    )


def _decode(value: Any, arrays: Mapping[str, Any]) -> Any:
    if isinstance(value, list):
        return [_decode(one, arrays) for one in value]
    if not isinstance(value, dict):
        return value
    if "array" in value:
        return jax.numpy.asarray(arrays[str(value["array"])])
    if "tuple" in value:
        return tuple(_decode(one, arrays) for one in value["tuple"])
    if "dict" in value:
        return {name: _decode(one, arrays) for name, one in value["dict"].items()}
    found = tagged_class(value.get("tag"))
    fields = {name: _decode(one, arrays) for name, one in value.get("fields", {}).items()}
    if issubclass(found, PolicyConfig):
        _check_scale(found, fields)
    try:
        return found(**fields)
    except TypeError as error:
        raise ValueError(
            f"the saved policy's part {value['tag']!r} does not fit {found.__name__} ({error}): "
            "train the policy again"
        ) from None


def _check_scale(found: type[PolicyConfig], fields: Mapping[str, Any]) -> None:
    """Refuse a policy that was saved without the scale of the scores that it reads.

    It read those of the tree, which were another thing in every setting.
    """
    if "score_scale" not in fields and found.score_scale is not None:
        raise ValueError(
            f"the saved policy is from before a {found.__name__} kept the scale of the scores that "
            "it reads: train and save it again; or, if it was trained on greedy text, add the score "
            f'temperature of its drafter then as "score_scale" to its fields in {HEADER}'
        )


def _orbax():
    try:
        import orbax.checkpoint
    except ImportError:
        raise ImportError(
            "policies are saved and loaded with Orbax: pip install orbax-checkpoint"
        ) from None
    return orbax.checkpoint
