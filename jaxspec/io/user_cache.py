"""The folder for files that jaxspec makes for itself and may always be deleted."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path


def user_cache(*parts: str) -> Path:
    """Return a folder in the user's cache, made if needed.

    It lies in `JAXSPEC_CACHE`, else in `XDG_CACHE_HOME` or `~/.cache` under `jaxspec`, or in the
    folder for temporary files if none of these can be written.

    Args:
      parts: names of the folder and its parents.
    """
    own = os.environ.get("JAXSPEC_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "jaxspec"
    for root in (Path(own) if own else base, Path(tempfile.gettempdir()) / "jaxspec"):
        folder = root.joinpath(*parts)
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    raise OSError("no folder for cached files can be written: set JAXSPEC_CACHE to one that can")
