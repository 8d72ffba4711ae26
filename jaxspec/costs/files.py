"""Save and load tables of round costs as JSON: description, fingerprint and arrays."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.io.files.atomic import write_text

ARRAYS = ("contexts", "draft", "verify", "plain", "step")


def save_costs(costs: RoundCosts, path: str | os.PathLike) -> None:
    """Write a table; create missing folders."""
    write_json(encode_costs(costs), path)


def load_costs(path: str | os.PathLike) -> RoundCosts:
    """Read a table that `save_costs` wrote.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file holds no table of round costs, or was changed since it was written.
    """
    return decode_costs(read_cost_file(path), path)


def encode_costs(costs: RoundCosts) -> dict[str, Any]:
    """Encode a table as JSON values, for files that hold more than one."""
    arrays = {name: getattr(costs, name) for name in ARRAYS}
    return {
        "about": costs.about,
        "fingerprint": costs.fingerprint,
        "widths": list(costs.widths),
        "blocks": list(costs.blocks),
        "compiled": list(costs.compiled),
        **{name: None if array is None else array.tolist() for name, array in arrays.items()},
    }


def decode_costs(content: Any, path: str | os.PathLike) -> RoundCosts:
    """Decode a table that `encode_costs` encoded; errors name `path`.

    Raises:
      ValueError: see `load_costs`.
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
            compiled=content.get("compiled"),  # tables of all compiled widths may lack it
        )
        same = costs.fingerprint == content["fingerprint"]
    except (KeyError, IndexError, TypeError, ValueError) as error:
        raise _refuse(path, error) from None
    if not same:
        raise ValueError(f"{path} was changed since it was measured: measure again")
    return costs


def write_json(content: Any, path: str | os.PathLike) -> None:
    """Write JSON values; create missing folders."""
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    write_text(path, to_text(content))


def to_text(content: Any) -> str:
    """Return the text of a file with JSON values."""
    return json.dumps(content, indent=1) + "\n"


def read_cost_file(path: str | os.PathLike) -> Any:
    """Read the JSON values of a file of round costs.

    Raises:
      FileNotFoundError: there is no such file.
      ValueError: the file is not JSON.
    """
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except ValueError as error:  # not JSON, or not UTF-8
        raise _refuse(path, error) from None


def _refuse(path: str | os.PathLike, error: Exception) -> ValueError:
    return ValueError(
        f"{path} holds no table of round costs ({error!r}): measure one with `jaxspec calibrate`"
    )
