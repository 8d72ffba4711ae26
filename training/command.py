"""How the commands of this package end, and what they may go on from."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any


@contextlib.contextmanager
def one_line_errors() -> Iterator[None]:
    """Exit with one line for what the user can mend (bad options, data, files, full disks), and
    quietly on Ctrl-C.
    """
    try:
        yield
    except (ValueError, OSError) as error:
        raise SystemExit(f"error: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(130) from None


def check_made_with(path: Path, made: Mapping[str, Any], wanted: Mapping[str, Any]) -> None:
    """Refuse to go on from a file that was made with other settings.

    Args:
      made, wanted: settings by name, as JSON keeps them: those of the file, and those of this call.

    Raises:
      ValueError: naming the first that differs.
    """
    for name in dict.fromkeys([*wanted, *made]):
        if made.get(name) != wanted.get(name):
            raise ValueError(
                f"{path} was made with {name} {made.get(name)!r}, not {wanted.get(name)!r}: give another folder, or delete it"
            )
