"""Write files and folders whole or not at all, with the modes that the user's umask asks for.

What is written lies under a temporary name until it is complete. If that fails, for example on a
full disk, nothing stays, and the error names the file in one line whatever library wrote it.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from jaxspec.core.runtime import interrupts

# What keeps a file from being written, and how libraries in Rust and C++ tell of it.
_CAUSES = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EIO)
_NUMBERED = re.compile(r"os error (\d+)")


@contextlib.contextmanager
def replacing(path: str | os.PathLike) -> Iterator[Path]:
    """Give a name to write to; the file then takes the place of `path`.

    It has the mode of the file that it replaces, or that of a new one. Devices and pipes, and files
    in folders that cannot be written, are written to themselves.

    Raises:
      OSError: it cannot be written.
    """
    path = Path(os.path.realpath(path))
    if (path.exists() and not path.is_file()) or not os.access(path.parent, os.W_OK):
        yield path
        return
    partial = path.with_name(f".{path.name}.{secrets.token_hex(4)}.partial")
    with _cleaning(partial, path):
        # Libraries may put a file of a mode of their own in the place of this one.
        partial.touch()
        mode = (path if path.exists() else partial).stat().st_mode & 0o7777
        yield partial
        partial.chmod(mode)
        os.replace(partial, path)


@contextlib.contextmanager
def staging(folder: str | os.PathLike, last: str = "config.json") -> Iterator[Path]:
    """Give an empty folder to write to; its files then move to `folder`, and replace those there.

    Args:
      folder: is made if needed.
      last: name of the file that says that a folder is complete; it moves last.

    Raises:
      OSError: something cannot be written.
    """
    folder = Path(folder)
    made = [one for one in (folder, *folder.parents) if not one.exists()]
    partial = folder / f".{secrets.token_hex(4)}.partial"
    try:
        with _cleaning(partial, folder):
            partial.mkdir(parents=True)
            yield partial
            _move(partial, folder, last)
    except BaseException:
        with contextlib.suppress(OSError):  # another process writes there too
            for one in made:
                one.rmdir()
        raise


def write_text(path: str | os.PathLike, text: str) -> None:
    """Write a text file in UTF-8, whole or not at all.

    Raises:
      OSError: it cannot be written.
    """
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: str | os.PathLike, content: Any, indent: int = 2) -> None:
    """Write a value as a JSON file, whole or not at all.

    Raises:
      OSError: it cannot be written.
    """
    write_text(path, json.dumps(content, indent=indent) + "\n")


def save_step(manager: Any, step: int, args: Any) -> None:
    """Write a checkpoint of Orbax, whole or not at all.

    Args:
      manager: an `orbax.checkpoint.CheckpointManager` that writes at once.
      step, args: of its `save`.

    Raises:
      OSError: it cannot be written, for example to a full disk.
    """
    try:
        manager.save(step, args=args, force=True)
        manager.wait_until_finished()
    except BaseException as error:
        for left in Path(manager.directory).glob(f"{step}.orbax-checkpoint-tmp*"):
            shutil.rmtree(left, ignore_errors=True)
        number = find_cause(error)
        if number is None:
            raise
        raise OSError(number, os.strerror(number), str(manager.directory)) from None


def find_cause(error: BaseException) -> int | None:
    """Return the number of the system's error behind an exception of any library.

    None: it is no such error, or one that has nothing to do with writing.
    """
    if isinstance(error, OSError):
        return error.errno
    text = str(error)
    said = [number for number in _CAUSES if os.strerror(number) in text]
    said += [int(number) for number in _NUMBERED.findall(text) if int(number) in _CAUSES]
    return said[0] if said else None


@contextlib.contextmanager
def _cleaning(partial: Path, path: Path) -> Iterator[None]:
    """Remove what is partial after an error, which then names `path`, or if Ctrl-C ends the
    process.
    """
    try:
        with interrupts.partial_file(partial):
            yield
    except BaseException as error:
        number = find_cause(error) if isinstance(error, Exception) else None
        at = getattr(error, "filename", None)
        own = at is None or str(at).startswith(str(partial))
        if number is None or not own:
            raise
        raise OSError(number, os.strerror(number), str(path)) from None
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)


def _move(partial: Path, folder: Path, last: str) -> None:
    """Move files between folders, those called `last` after all others, and inner ones before."""
    for source in sorted(partial.iterdir(), key=lambda path: path.name == last):
        target = folder / source.name
        if source.is_dir() and target.is_dir():
            _move(source, target, last)
        else:
            os.replace(source, target)
