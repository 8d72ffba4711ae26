"""Read and write the files of any registered drafter."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.format import About, Format
from jaxspec.drafters.registry import record_of, records
from jaxspec.io.files.torch_files import open_weights
from jaxspec.io.weights.config_entries import read_entries


def find_config(directory: str | os.PathLike) -> Any:
    """Find whose files a directory holds, and read the drafter's config; see `read_config`."""
    hf = read_entries(Path(directory) / "config.json")
    return read_config(hf, lambda: open_weights(directory))


def read_config(hf: dict[str, Any], list_names: Callable[[], Collection[str]] = tuple) -> Any:
    """Read the config of the drafter that a config.json describes, as far as the file states it.

    Formats that were registered last are tried first.

    Args:
      hf: the entries of config.json.
      list_names: lists the names of the tensors beside it; called only if they decide.

    Raises:
      ValueError: no registered drafter has this architecture, or its entries cannot be read.
    """
    readable = [record for record in records() if record.files is not None]
    for record in reversed(readable):
        files = record.files
        if files.matches(hf):
            return files.config_from_hf(hf)
        if files.identify and (config := files.identify(hf, list_names)) is not None:
            return config
    named = (hf.get("architectures") or [None])[0]
    raise ValueError(
        f"unknown drafter architecture {named!r} (model_type {hf.get('model_type')!r}); supported: "
        f"{', '.join(record.name for record in readable)}"
    )


def for_target(config: Any, target: TargetConfig) -> Any:
    """Complete `config` from the target, since some files leave sizes out; ValueError if it does
    not fit.
    """
    return _format(config).for_target(config, target)


def pad_vocabulary(config: Any, rows: int) -> Any:
    """Return `config` for a target whose table has `rows` rows.

    The drafter's own has more or fewer. The rows of tokens are the same, and the tokens that it has
    no rows for are never drafted. Configs of drafters that cannot do so are returned unchanged.
    """
    return _format(config).pad(config, rows)


def load_drafter(directory: str | os.PathLike, config: Any, dtype: str) -> dict[str, Any]:
    """Read the variables (see `jaxspec.drafters.base`) of the drafter in `directory`.

    Args:
      directory: holds config.json and weights.
      config: the config that was read from config.json.
      dtype: dtype of all weights.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, weights hold NaN, the map of draft tokens is wrong,
        or a part is not supported.
    """
    return _format(config).read(directory, config, dtype)


def lend(
    variables: dict[str, Any],
    config: Any,
    target: Any,
    target_config: TargetConfig,
    directory: str | os.PathLike,
) -> dict[str, Any]:
    """Return a drafter's variables with what its files in `directory` leave to the target.

    Args:
      variables: what `load_drafter` returned.
      config: of the drafter.
      target: variables of the target.
      target_config: of the target.
    """
    return _format(config).lend(variables, target, target_config, directory)


def check_files(directory: str | os.PathLike, config: Any) -> None:
    """Raise what `load_drafter` would, but read no weights: only names, shapes and dtypes."""
    _format(config).check(directory, config)


def write_drafter(
    directory: str | os.PathLike, config: Any, variables: Mapping[str, Any], about: About
) -> None:
    """Write a drafter in its published layout, in the dtype of its weights."""
    _format(config).write(directory, config, variables, about)


def borrowed_tensors(config: Any, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Return the target's tensors that are saved with the drafter, see `Format.borrowed`."""
    return _format(config).borrowed(config, hf)


def _format(config: Any) -> Format:
    record = record_of(config)
    if record.files is None:
        raise ValueError(f"drafter {record.name!r} has no files: register it with `files`")
    return record.files
