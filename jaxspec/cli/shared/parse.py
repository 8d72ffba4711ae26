"""Read the texts of command line options; a bad one ends the command with one line."""

from __future__ import annotations

import argparse
import errno
import json
import math
import os
from pathlib import Path
from typing import Any


def parse_file(text: str) -> Path:
    """Read the name of a file or pipe to read, and look for it before a model is loaded.

    Raises:
      OSError: it is missing, or a folder.
    """
    path = Path(text)
    path.stat()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), text)
    return path


def parse_prompts(text: str) -> Path | str:
    """Read what --prompts names: a file as `parse_file`, or `hub:` and the name of a data set."""
    from jaxspec.io.text.record_sources import check_hub_name, is_hub_name

    if not is_hub_name(text):
        return parse_file(text)
    try:
        return check_hub_name(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(str(error)) from None


class SetVariable(argparse.Action):
    """Put NAME=VALUE into a dictionary; the value is JSON, or else a text.

    Python's True, False and None are read too: as texts they would all be true in a template.
    """

    def __call__(self, parser: Any, namespace: Any, values: Any, option_string: Any = None) -> None:
        """Add a variable; an ArgumentError if it has no name."""
        name, equals, text = values.partition("=")
        if not (name.isidentifier() and equals):
            raise argparse.ArgumentError(self, f"{values!r} is no NAME=VALUE")
        try:
            value = json.loads({"True": "true", "False": "false", "None": "null"}.get(text, text))
        except ValueError:
            value = text
        setattr(namespace, self.dest, {**(getattr(namespace, self.dest) or {}), name: value})


def parse_integers(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas, each once; 8k is 8192, and 1-4 is 1,2,3,4.

    Raises:
      argparse.ArgumentTypeError: an item is not a whole number.
    """
    try:
        numbers = [number for item in parse_names(text) for number in _read_range(item)]
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of whole numbers: write it as in 1,4,16"
        ) from None
    return tuple(dict.fromkeys(numbers))


def _read_range(item: str) -> range:
    """Read a whole number, or the numbers from one to another; a ValueError if it is neither."""
    first, dash, last = item.partition("-") if item[:1] != "-" else (item, "", "")
    low, high = (
        int(number[:-1]) * 1024 if number[-1:] in ("k", "K") else int(number)
        for number in (first, last if dash else first)
    )
    return range(low, high + 1)


def parse_counts(text: str) -> tuple[int, ...]:
    """Read whole numbers above 0 separated by commas, at least one, each once.

    Raises:
      argparse.ArgumentTypeError: there is none, or an item is no such number.
    """
    numbers = parse_integers(text)
    if not numbers or min(numbers) < 1:
        raise argparse.ArgumentTypeError(
            f"{text!r} is no list of numbers above 0: write it as in 1,8"
        )
    return numbers


def parse_time(text: str) -> float:
    """Read a time above 0, in the unit of the option.

    Raises:
      argparse.ArgumentTypeError: it is none.
    """
    try:
        time = float(text)
    except ValueError:
        time = math.nan
    if not 0 < time < math.inf:
        raise argparse.ArgumentTypeError(f"{text!r} is no time: give a number above 0")
    return time


def parse_names(text: str) -> tuple[str, ...]:
    """Read names separated by commas, each once."""
    return tuple(dict.fromkeys(item.strip() for item in text.split(",") if item.strip()))


def parse_temperatures(text: str) -> tuple[float, ...]:
    """Read numbers separated by commas, each once.

    Raises:
      argparse.ArgumentTypeError: an item is no number.
    """
    try:
        return tuple(dict.fromkeys(float(number) for number in text.split(",")))
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not a list of numbers: write it as in 0,1"
        ) from None
