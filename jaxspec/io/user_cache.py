"""The folder for files that jaxspec makes for itself and may always be deleted."""

from __future__ import annotations

import contextlib
import functools
import os
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

from jaxspec.io.files.atomic import write_text


def user_cache(*parts: str) -> Path:
    """Return a folder in the user's cache, made if that can be.

    It lies in `JAXSPEC_CACHE`, else where the system keeps a user's caches (`~/.cache/jaxspec` on
    Linux), or in the folder for temporary files if none of these can be written.

    Args:
      parts: names of the folder and its parents.
    """
    return next(list_caches(*parts), _list_roots()[0].joinpath(*parts))


def list_caches(*parts: str) -> Iterator[Path]:
    """Make and yield the folders that `user_cache` chooses from, the first choice first."""
    for root in _list_roots():
        folder = root.joinpath(*parts)
        with contextlib.suppress(OSError):
            folder.mkdir(parents=True, exist_ok=True)
            if os.access(folder, os.W_OK):
                yield folder


def _list_roots() -> list[Path]:
    import platformdirs

    own = os.environ.get("JAXSPEC_CACHE")
    base = Path(own) if own else platformdirs.user_cache_path("jaxspec", appauthor=False)
    return [base, Path(tempfile.gettempdir()) / "jaxspec"]


def keep(path: Path, text: str) -> None:
    """Write a file to the cache. If that fails, warn once: the next process works it out again."""
    try:
        write_text(path, text)
    except OSError as error:
        warn_unwritten(error)


@functools.cache
def _warn(reason: str) -> None:
    warnings.warn(
        f"files cannot be kept ({reason}), so the next process will work them out again: "
        "free space there, or set JAXSPEC_CACHE to another folder",
        stacklevel=4,
    )


def warn_unwritten(error: OSError) -> None:
    """Warn once a process that the cache cannot be written, which nothing depends on."""
    _warn(error.strerror or str(error))
