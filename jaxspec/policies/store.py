"""Policies on disk: the arrays with Orbax, everything else as JSON beside them, with what they were
trained for.

A policy chooses well for one target, one drafter, one builder and the times of one device. It is
therefore kept with their names, and loading it for others warns.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib
import json
import os
import sys
import warnings
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.policies.protocol import Policy

HEADER, ARRAYS = "policy.json", "arrays"


def save_policy(
    policy: Policy, path: str | os.PathLike, about: Mapping[str, Any] | None = None
) -> None:
    """Write a policy with what it has learned into the folder `path`, in place of one that is
    there.

    Args:
      about: what it was trained for, such as target, drafter, builder, device and latency table:
        names, as JSON.

    Raises:
      ImportError: Orbax is not installed.
    """
    checkpoints, arrays = _orbax(), []
    header = {"about": dict(about or {}), "policy": _encode(policy, arrays)}
    path = Path(path).absolute()
    path.mkdir(parents=True, exist_ok=True)
    with checkpoints.StandardCheckpointer() as checkpointer:
        numbered = {str(i): np.asarray(array) for i, array in enumerate(arrays)}
        checkpointer.save(path / ARRAYS, numbered or {"none": np.zeros(())}, force=True)
    (path / HEADER).write_text(json.dumps(header, indent=1) + "\n")


def load_policy(path: str | os.PathLike, *, about: Mapping[str, Any] | None = None) -> Policy:
    """Read a policy of `save_policy`.

    Args:
      about: what it is to be used for; a warning names every entry of the saved one that differs.

    Raises:
      FileNotFoundError: there is none. ValueError: it is damaged, or its class is not to be found.
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
    """What the policy in the folder `path` was trained for, as given to `save_policy`.

    Raises:
      FileNotFoundError: there is none.
    """
    return _header(Path(path).absolute())["about"]


def fingerprint(tree: Any) -> str:
    """A short name of a pytree of arrays, such as a latency table."""
    digest = hashlib.sha256()
    for leaf in jax.tree.leaves(tree):
        digest.update(np.ascontiguousarray(leaf).tobytes())
    return digest.hexdigest()[:12]


def _header(path: Path) -> dict[str, Any]:
    if not (path / HEADER).is_file():
        raise FileNotFoundError(f"no policy in {path}: {HEADER} is missing")
    return json.loads((path / HEADER).read_text())


def _compare(saved: Mapping[str, Any], wanted: Mapping[str, Any], path: Path) -> None:
    for name, value in wanted.items():
        if name in saved and saved[name] != value:
            warnings.warn(
                f"the policy in {path} was trained for {name} {saved[name]}, not {value}: it may choose badly; train it again "
                f"for this {name}, or see with `jaxspec bench policies` what it is worth here",
                stacklevel=3,
            )


def _encode(value: Any, arrays: list) -> Any:
    """`value` as JSON; arrays are put aside and stand as their numbers."""
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
        return {"class": f"{type(value).__module__}:{type(value).__qualname__}", "fields": fields}
    if isinstance(value, tuple):
        return {"tuple": [_encode(one, arrays) for one in value]}
    if isinstance(value, dict) and all(isinstance(name, str) for name in value):
        return {"dict": {name: _encode(one, arrays) for name, one in value.items()}}
    raise ValueError(
        f"a policy holds a {type(value).__name__}, which cannot be saved: keep arrays, numbers and names in it"
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
    return _class(value["class"])(
        **{name: _decode(one, arrays) for name, one in value["fields"].items()}
    )


def _class(name: str) -> type:
    """The class of a name from a file: of this package, or of a module that the caller has
    imported.
    """
    module, _, qualified = name.partition(":")
    if module.startswith("jaxspec.policies."):
        importlib.import_module(module)
    found = getattr(sys.modules.get(module), qualified, None)
    if not (
        isinstance(found, type) and (dataclasses.is_dataclass(found) or hasattr(found, "_fields"))
    ):
        raise ValueError(
            f"the saved policy is made of {name}, which is not to be found: import its module before loading it"
        )
    return found


def _orbax():
    try:
        import orbax.checkpoint
    except ImportError:
        raise ImportError(
            "policies are saved and loaded with Orbax: pip install orbax-checkpoint"
        ) from None
    return orbax.checkpoint
