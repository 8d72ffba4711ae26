"""What a tuner keeps on disk: a file for each device, jax version, model and setting."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from pathlib import Path
from typing import Any

import jax

from jaxspec.core.params import Params
from jaxspec.io.processor import describe_processor
from jaxspec.io.user_cache import keep, user_cache, warn_unwritten
from jaxspec.targets.layouts.registry import find_layout


class Store:
    """A folder of measurements, which may always be deleted.

    Attributes:
      frozen: whether nothing is written.
    """

    def __init__(self, folder: str | os.PathLike | None = None, frozen: bool = False):
        """Make it; nothing is read or written yet.

        Args:
          folder: None: `costs` in `jaxspec.io.user_cache.user_cache`.
        """
        self._folder, self.frozen = None if folder is None else Path(folder), frozen

    def find(self, name: str, *described: Any) -> Path:
        """Return the path of what was measured for a setting on this device.

        Args:
          name: begins the file's name behind the device and jax's version.
          described: all else that it depends on; only their `repr` counts.
        """
        first = jax.devices()[0]
        if first.platform == "cpu":
            described = (*described, describe_processor())
        digest = hashlib.sha256(repr(described).encode()).hexdigest()[:16]
        device = first.device_kind.replace(" ", "-").replace("/", "-")
        folder = user_cache("costs") if self._folder is None else self._folder
        return folder / f"{device}-jax{jax.__version__}-{name}-{digest}.json"

    def write(self, path: Path, text: str) -> None:
        """Write a file, in place of one that is there."""
        if not self.frozen:
            _make_folder(path)
            keep(path, text)

    def write_first(self, path: Path, text: str) -> None:
        """Write a file, unless another process has written it meanwhile; it then stays."""
        if self.frozen:
            return
        _make_folder(path)
        partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
        try:
            partial.write_text(text, encoding="utf-8")
            _move_first(partial, path)
        except FileExistsError:
            pass
        except OSError as error:
            warn_unwritten(error)
        finally:
            with contextlib.suppress(OSError):
                partial.unlink()


def _move_first(partial: Path, path: Path) -> None:
    """Give a file its name, unless there is one of this name.

    Raises:
      FileExistsError: there is.
      OSError: it cannot be written.
    """
    try:
        os.link(partial, path)  # complete at once
    except FileExistsError:
        raise
    except OSError:  # a file system without links
        with path.open("x", encoding="utf-8") as file:
            file.write(partial.read_text(encoding="utf-8"))


def _make_folder(path: Path) -> None:
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)


def describe_model(params: Params, drafter: str) -> tuple[Any, ...]:
    """List what the time of a round depends on in a model: sizes, dtype, quantisation, devices.

    Args:
      drafter: its name.
    """
    # In each layout weights compute in the same dtype, but at different speeds.
    layout = find_layout(params.target)
    weights = str(params.dtype) if layout is None else f"{params.dtype} {layout.name}"
    if params.layout is not None:
        weights += f" on {params.layout.devices} devices"
    return params.spec.target, params.spec.drafter(drafter), weights
