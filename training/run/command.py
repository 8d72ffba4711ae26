"""What the commands of this package share: errors in one line, and checks before continuing."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping, Sequence
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


def parse_with_preset(
    options: type,
    presets: Mapping[str, Mapping[str, Any]],
    arguments: Sequence[str] | None = None,
    prog: str | None = None,
) -> Any:
    """Parse options from a command line; `--preset NAME` gives the defaults of all others.

    Args:
      options: a dataclass.
      presets: options by name that differ from the class's defaults; the first is the default.
      arguments: of the command line; None: those of this process.
      prog: name of the command in its help.
    """
    import argparse

    import tyro

    first = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    first.add_argument("--preset", choices=list(presets), default=next(iter(presets)))
    chosen, rest = first.parse_known_args(arguments)
    needed = {
        field.name: tyro.MISSING
        for field in dataclasses.fields(options)
        if field.default is dataclasses.MISSING and field.default_factory is dataclasses.MISSING
    }
    default = options(**needed | presets[chosen.preset])
    described = f"{options.__doc__} --preset NAME gives the defaults: {', '.join(presets)}."
    return tyro.cli(options, prog=prog, default=default, args=rest, description=described)


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
