"""What the commands of this package share: errors in one line, and checks before continuing."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from jaxspec.core.runtime.jax_settings import own_process


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Exit with one line for errors that the user can fix.

    These are bad options, bad data, missing files and full disks. `jaxspec.core.runtime.interrupts`
    ends a command on Ctrl-C.
    """
    try:
        with own_process():
            yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None


def check_made_with(path: Path, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to continue from a file that was made with other settings.

    Args:
      path: the file.
      made: settings of the file by name, as JSON.
      wanted: settings of this call by name, as JSON.

    Raises:
      ValueError: names the first setting that differs.
    """
    for name in dict.fromkeys([*wanted, *made]):
        if made.get(name) != wanted.get(name):
            raise ValueError(
                f"{path} was made with {name} {made.get(name)!r}, not {wanted.get(name)!r}: "
                "give another folder, or delete it"
            )
