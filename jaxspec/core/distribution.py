"""Detect the unrelated distribution on PyPI that shares this package's import name."""

from __future__ import annotations

import importlib.metadata

OURS = "jax-speculative"
THEIRS = "jaxspec"  # X-ray spectral fitting


def check() -> None:
    """Refuse to run if the X-ray astronomy package `jaxspec` is installed too.

    Both packages write to one `jaxspec` folder: the later one has overwritten files of the other.

    Raises:
      ImportError: names the package and the commands that repair the installation.
    """
    try:
        version = importlib.metadata.version(THEIRS)
    except importlib.metadata.PackageNotFoundError:
        return
    raise ImportError(
        f"the PyPI package 'jaxspec' {version} (X-ray astronomy) is installed and shares the "
        f"import name of {OURS}: run `pip uninstall jaxspec`, then reinstall {OURS} with "
        "`--force-reinstall --no-deps`"
    )
