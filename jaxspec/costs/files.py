"""Tables of round costs as JSON: what they are about, their fingerprint, and their arrays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.costs.round_costs import RoundCosts, make_costs

ARRAYS = ("contexts", "draft", "verify", "plain", "step")


def save_costs(costs: RoundCosts, path: str | os.PathLike) -> None:
    """Write a table; folders that are missing are made."""
    write_json(encode_costs(costs), path)


def load_costs(path: str | os.PathLike) -> RoundCosts:
    """Read a table of `save_costs`.

    Raises:
      FileNotFoundError: no such file.
      ValueError: the file holds no such table, or was changed since it was written.
    """
    return decode_costs(read_cost_file(path), path)


def encode_costs(costs: RoundCosts) -> dict[str, Any]:
    """A table as JSON values, for files that hold more than one."""
    arrays = {name: getattr(costs, name) for name in ARRAYS}
    return {
        "about": costs.about,
        "fingerprint": costs.fingerprint,
        "widths": list(costs.widths),
        "blocks": list(costs.blocks),
        **{name: None if array is None else array.tolist() for name, array in arrays.items()},
    }


def decode_costs(content: Any, path: str | os.PathLike) -> RoundCosts:
    """The table that `encode_costs` gave; `path` is named in errors.

    Raises:
      ValueError: as `load_costs`.
    """
    try:
        verify = np.asarray(content["verify"], np.float64)
        costs = make_costs(
            content["widths"],
            content["contexts"],
            content["draft"],
            verify if content["blocks"] else verify[0],
            plain=content["plain"],
            step=content["step"],
            blocks=content["blocks"],
            about=content["about"],
        )
        same = costs.fingerprint == content["fingerprint"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _refuse(path, error) from None
    if not same:
        raise ValueError(f"{path} was changed since it was measured: measure again")
    return costs


def write_json(content: Any, path: str | os.PathLike) -> None:
    """Write JSON values; folders that are missing are made."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")


def read_cost_file(path: str | os.PathLike) -> Any:
    """Read JSON values of a file of round costs.

    Raises:
      FileNotFoundError: no such file. ValueError: it is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not UTF-8
        raise _refuse(path, error) from None


def _refuse(path: str | os.PathLike, error: Exception) -> ValueError:
    return ValueError(
        f"{path} holds no table of round costs ({error!r}): measure one with `jaxspec calibrate`"
    )
