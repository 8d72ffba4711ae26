"""Read files of JSON objects as people publish them: JSON Lines, or one JSON array.

Either may be gzipped, begin with a byte order mark, end lines with CRLF and hold blank lines; an
array may be on one line or on many, and objects may be written over several lines.
"""

from __future__ import annotations

import codecs
import gzip
import io
import json
import logging
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec.io.text.messages import is_empty, replace_surrogates

log = logging.getLogger("jaxspec")

SETTINGS = "settings"
_GZIP = b"\x1f\x8b"
_ENCODINGS = (
    (codecs.BOM_UTF32_LE, "utf-32"),
    (codecs.BOM_UTF32_BE, "utf-32"),
    (codecs.BOM_UTF16_LE, "utf-16"),
    (codecs.BOM_UTF16_BE, "utf-16"),
)
_MARK = "\ufeff"  # files put together hold several byte order marks
_SPACE = re.compile(r"[\s\ufeff]*")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")
_WANTED = "give one JSON object a line, or a JSON array of objects"


class BrokenRecord(ValueError):
    """A file cannot be read as JSON objects.

    Attributes:
      place: file and line.
      fault: what is wrong, a predicate such as "is not JSON".
      line: number of the line.
    """

    def __init__(self, place: str, fault: str, line: int):
        super().__init__(f"{place} {fault}")
        self.place, self.fault, self.line = place, fault, line


def read_objects(path: str | os.PathLike) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield (place, object) of a file, in order; the place names file and line.

    Empty conversations, which published files hold, are left out; the log says how many. So is a
    first object with the key `settings` alone, which says how a file was made. Half a surrogate
    pair in a text becomes U+FFFD.

    Raises:
      BrokenRecord: it cannot be read, or holds something else.
      OSError: it is not there.
    """
    path, empty = Path(path), []
    for number, (place, line, value) in enumerate(_read_values(path)):
        if not isinstance(value, dict):
            raise BrokenRecord(place, f"is not a JSON object: {_WANTED}", line)
        if is_empty(value):
            empty.append(line)
        elif number or set(value) != {SETTINGS}:
            yield place, value
    if empty:
        log.warning(
            "%s: %d empty conversations are left out, the first in line %d",
            path,
            len(empty),
            empty[0],
        )


def _read_values(path: Path) -> Iterator[tuple[str, int, Any]]:
    """Yield (place, line, value)."""
    number, first = 0, True
    try:
        with path.open("rb") as raw, _open_text(raw) as lines:
            for number, line in enumerate(lines, 1):
                line = line.strip().strip(_MARK)
                if not line:
                    continue
                if first and (line.startswith("[") or line == "{"):
                    yield from _read_whole(path, line + "\n" + lines.read(), number)
                    return
                first, place = False, f"{path}, line {number}"
                value, end = _decode(line, 0, place, number)
                if _skip_space(line, end) < len(line):
                    fault = f"is not JSON (more follows the first value): {_WANTED}"
                    raise BrokenRecord(place, fault, number)
                yield place, number, value
    except (OSError, EOFError, UnicodeError, zlib.error) as error:
        if number == 0 and isinstance(error, OSError) and error.errno is not None:
            raise
        if isinstance(error, UnicodeError):
            error = f"{path.name} is not UTF-8: save it as UTF-8"
        fault = f"cannot be read ({error})"
        raise BrokenRecord(f"{path}, after line {number}", fault, number) from None


def _open_text(raw: io.BufferedReader) -> io.TextIOWrapper:
    """Open a file for text, by its first bytes."""
    file: Any = raw
    if raw.peek(2).startswith(_GZIP):
        file = io.BufferedReader(gzip.GzipFile(fileobj=raw))
    first = file.peek(4)
    encoding = next((name for mark, name in _ENCODINGS if first.startswith(mark)), "utf-8")
    return io.TextIOWrapper(file, encoding=encoding, errors="surrogatepass")


def _read_whole(path: Path, text: str, line: int) -> Iterator[tuple[str, int, Any]]:
    """Yield the elements of an array, or objects that are written over several lines.

    Args:
      line: number of the text's first line.
    """
    array, count, last = text[0] == "[", 0, 0
    at = _skip_space(text, 1 if array else 0)
    while at < len(text) and not (array and text[at] == "]"):
        count, line, last = count + 1, line + text.count("\n", last, at), at
        place = f"{path}, record {count} in line {line}" if array else f"{path}, line {line}"
        value, at = _decode(text, at, place, line)
        yield place, line, value
        at = _skip_space(text, at)
        if array and text[at : at + 1] == ",":
            at = _skip_space(text, at + 1)
        elif array and text[at : at + 1] != "]":
            raise BrokenRecord(
                place, "is not JSON (a comma or the array's end should follow)", line
            )
    if array and (at == len(text) or _skip_space(text, at + 1) < len(text)):
        what = "does not end" if at == len(text) else "is followed by more"
        raise BrokenRecord(f"{path}, line {line}", f"is not JSON (its array {what})", line)


def _skip_space(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return found.end() if found else at


def _decode(text: str, at: int, place: str, line: int) -> tuple[Any, int]:
    """Return the value that begins at a character, and where it ends."""
    try:
        value, end = json.JSONDecoder().raw_decode(text, at)
    except (ValueError, RecursionError) as error:
        reason = getattr(error, "msg", None) or str(error)
        further = text.count("\n", at, getattr(error, "pos", at))
        where = f" in line {line + further}" if further else ""
        fault = f"is not JSON ({reason}{where}): {_WANTED}"
        raise BrokenRecord(place, fault, line + further) from None
    if _SURROGATE.search(text, at, end):
        value = replace_surrogates(value)
    return value, end
