"""Files, lines and annotations of the package."""

from __future__ import annotations

import ast
import collections
import statistics
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from house.modules import LIBRARY, ROOT, list_installed, list_modules, parse, run_git


class Lengths(NamedTuple):
    """Median and maximum of lengths in lines, and what is longest."""

    median: float
    longest: int
    where: str


def count_entries() -> int:
    """Count files and folders at the top of `jaxspec/` that git knows, and that one would open.

    Neither the marker of a typed package nor the other name of the folder `training` is.
    """
    listed = run_git("ls-files", "-co", "--exclude-standard", "jaxspec")
    found = {Path(line).parts[1] for line in listed if (ROOT / line).exists()}
    return len(found - {"py.typed", "training"})


def count_installed() -> tuple[int, int]:
    """Count the Python files that a wheel installs, and their lines, blank ones included."""
    paths = list_installed()
    return len(paths), sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def count_by_folder() -> dict[str, int]:
    """Count the Python files of each installed folder, its `__init__.py` included."""
    counts = collections.Counter(path.parent for path in list_installed())
    return {folder.relative_to(ROOT).as_posix(): n for folder, n in counts.most_common()}


def list_functions(folder: Path) -> Iterator[tuple[Path, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """List the functions below a folder, inner ones and methods included, with their files."""
    for path in list_modules(folder):
        for node in ast.walk(parse(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield path, node


def measure_annotated(folder: Path) -> float:
    """Share of arguments with an annotation below a folder; `self` and `cls` do not count."""
    known = total = 0
    for _, node in list_functions(folder):
        given = node.args
        arguments = [*given.posonlyargs, *given.args, *given.kwonlyargs, given.vararg, given.kwarg]
        counted = [one for one in arguments if one is not None and one.arg not in ("self", "cls")]
        known += sum(one.annotation is not None for one in counted)
        total += len(counted)
    return known / total


def measure_modules(folder: Path = LIBRARY) -> Lengths:
    """Lengths of the modules below a folder."""
    lines = {
        path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8").count("\n")
        for path in list_modules(folder)
    }
    return summarise_lengths(lines)


def measure_functions(folder: Path = LIBRARY) -> Lengths:
    """Lengths of the functions below a folder, docstrings included."""
    lines = {
        f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {node.name}": (node.end_lineno or 0)
        - node.lineno
        + 1
        for path, node in list_functions(folder)
    }
    return summarise_lengths(lines)


def summarise_lengths(lines: dict[str, int]) -> Lengths:
    """Median, maximum and the name of the longest."""
    where = max(lines, key=lambda name: lines[name])
    return Lengths(statistics.median(lines.values()), lines[where], where)
