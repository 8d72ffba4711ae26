"""Detects the unrelated distribution of PyPI that shares this package's import name."""

from __future__ import annotations

import importlib.metadata

OURS = "jax-speculative"
THEIRS = "jaxspec"  # X-ray spectral fitting


def check() -> None:
    """Refuse to run where the X-ray astronomy package `jaxspec` is installed beside this one or
    over it.

    Both write into one `jaxspec` folder, so whichever came last has overwritten files of the other.

    Raises:
      ImportError: one line that names the package and the two commands that mend it.
    """
    try:
        version = importlib.metadata.version(THEIRS)
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the PyPI package 'jaxspec' {version} (X-ray astronomy) is installed and has the import name of this one ({OURS}): "
        f"run `pip uninstall jaxspec`, then reinstall {OURS} with `--force-reinstall --no-deps`"
    )
