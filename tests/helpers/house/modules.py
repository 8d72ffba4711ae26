"""The modules of the package, parsed, and what they import."""

from __future__ import annotations

import ast
import functools
import os
import subprocess
from collections.abc import Iterator
from pathlib import Path

# Of a clone; HOUSE_ROOT names another one, to compare figures.
ROOT = Path(os.environ.get("HOUSE_ROOT") or Path(__file__).parents[3]).resolve()
LIBRARY, KERNELS, TRAINING = ROOT / "jaxspec", ROOT / "pallas_kernels", ROOT / "training"
LIBRARIES = (LIBRARY, KERNELS)
# What a wheel holds. It calls the folder `training` `jaxspec.training`; what is there in a clone
# leads to it.
INSTALLED = (*LIBRARIES, TRAINING)


@functools.cache
def parse(path: Path) -> ast.Module:
    """Parse a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def list_modules(folder: Path = LIBRARY) -> list[Path]:
    """List the Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def list_installed() -> list[Path]:
    """List the Python files that a wheel installs."""
    return [path for folder in INSTALLED for path in list_modules(folder)]


def name_module(path: Path) -> str:
    """Return the dotted name of a module, or of the package whose `__init__.py` it is."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def list_imports(tree: ast.Module, path: Path) -> Iterator[str]:
    """List the dotted names of what a module imports, inside functions too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def run_git(*arguments: str) -> list[str]:
    """Run git in the project: its lines."""
    out = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return out.splitlines()
