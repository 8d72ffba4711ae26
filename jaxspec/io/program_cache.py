"""Keep compiled programs in the user's cache folder, so that a later process compiles nothing.

This is JAX's persistent compilation cache, with what XLA timed on a GPU. It serves every program of
the process. `JAXSPEC_COMPILE_CACHE=0` turns it off, `JAXSPEC_CACHE` moves it. Settings of JAX's
own, in code or in its environment variables, come first.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import shutil
import stat
import warnings
from pathlib import Path

import jax

from jaxspec.io.user_cache import user_cache, warn_unwritten

SWITCH, FOLDER = "JAXSPEC_COMPILE_CACHE", "programs"
# XLA's file of kernels forgets the shape of a kernel's grid, so a program that takes attention from
# it computes nonsense or crashes (xla/service/gpu/kernel_reuse_cache.cc, and docs/gpu.md).
_CACHES, _KERNELS = "jax_persistent_cache_enable_xla_caches", "xla_gpu_kernel_cache_file"
# With a limit, JAX locks the folder for each file, and drops the programs that were not used for
# longest.
_LIMIT, _MOST_BYTES = "jax_compilation_cache_max_size", 4 << 30
# JAX's defaults leave out programs that compile in less than a second.
_SETTINGS = {
    "jax_persistent_cache_min_compile_time_secs": 0.0,
    "jax_persistent_cache_min_entry_size_bytes": -1,
    _CACHES: "xla_gpu_per_fusion_autotune_cache_dir",
    _LIMIT: _MOST_BYTES,
}
# Fewest free bytes of a folder to keep programs in: a few dozen of them.
_LEAST_FREE = 16 << 20
_UNWRITTEN = ("Error writing persistent", "Error reading persistent")
# JAX writes a program, and then a file with the time of its last use.
_PROGRAM, _USED, _LOCK = "-cache", "-atime", ".lockfile"


@functools.cache
def keep_programs() -> Path | None:
    """Turn the cache on, once per process; programs that were compiled before are not kept.

    Warns if JAX's own settings ask for XLA's file of kernels on a GPU.

    Returns:
      The folder; None if the cache is off, if JAX has a folder already, or if none is safe.
    """
    folder = _turn_on()
    if jax.config.jax_enable_compilation_cache and jax.config.jax_compilation_cache_dir:
        _warn_of_kernels()
    return folder


def _turn_on() -> Path | None:
    configured = jax.config.jax_compilation_cache_dir or not jax.config.jax_enable_compilation_cache
    if configured or os.environ.get(SWITCH) == "0":
        return None
    settings = {name: value for name, value in _SETTINGS.items() if name.upper() not in os.environ}
    try:
        folder = user_cache(FOLDER)
        if not is_private(folder):
            return None
        if shutil.disk_usage(folder).free < _LEAST_FREE:
            warn_unwritten(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder)))
            return None
        if _LIMIT in settings:
            _remove_torn(folder)
    except OSError:  # the folder cannot be written: compile as without a cache
        return None
    for name, value in (settings | {"jax_compilation_cache_dir": str(folder)}).items():
        jax.config.update(name, value)
    warnings.filters.insert(0, ("ignore", _Later(), Warning, None, 0))
    return folder


class _Later:
    """Matches JAX's warnings that a program cannot be kept, but for the first: each has its name."""

    def __init__(self) -> None:
        self._seen = False

    def match(self, text: str) -> bool:
        """Whether a warning is to be left out, as `warnings` asks a regular expression."""
        if not text.startswith(_UNWRITTEN):
            return False
        seen, self._seen = self._seen, True
        return seen


def _warn_of_kernels() -> None:
    """Warn if XLA keeps kernels in a file on a GPU."""
    chosen = getattr(jax.config, _CACHES) or ""
    if (chosen == "all" or _KERNELS in chosen) and jax.default_backend() == "gpu":
        warnings.warn(
            f"{_CACHES.upper()} is {chosen!r}: with XLA's file of kernels, programs on a GPU give "
            f"wrong texts or crash; leave the variable out, or set it to {_SETTINGS[_CACHES]}",
            stacklevel=3,
        )


def is_private(folder: Path) -> bool:
    """Whether only this user can write to a folder and the one above it; programs are code."""
    if not hasattr(os, "getuid"):
        return True
    found = [path.stat() for path in (folder, folder.parent)]
    others = stat.S_IWGRP | stat.S_IWOTH
    return all(one.st_uid == os.getuid() and not one.st_mode & others for one in found)


def _remove_torn(folder: Path) -> None:
    """Remove programs that a killed process wrote in part.

    JAX would read them in vain in every process, and never replace them.
    """
    import filelock

    with contextlib.suppress(filelock.Timeout), filelock.FileLock(folder / _LOCK, timeout=5):
        for path in folder.glob(f"*{_PROGRAM}"):
            name = path.name.removesuffix(_PROGRAM)
            if not (folder / f"{name}{_USED}").exists():
                path.unlink(missing_ok=True)
