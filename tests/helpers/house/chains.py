"""Who imports whom among the installed modules.

Imports inside functions count, for a reader follows them too. `from package import name` leads to
the module `package.name` where there is one, else to the package.
"""

from __future__ import annotations

import functools
import graphlib

from house.modules import list_imports, list_installed, name_module, parse


@functools.cache
def read_imports() -> dict[str, frozenset[str]]:
    """Read which installed modules each one imports."""
    paths = {name_module(path): path for path in list_installed()}
    found = {}
    for name, path in paths.items():
        dotted = {resolve(one, paths) for one in list_imports(parse(path), path)}
        found[name] = frozenset(dotted - {None, name})
    return found


def resolve(name: str, known: dict) -> str | None:
    """Return the installed module of a dotted name: the longest beginning that is one."""
    if name.startswith("jaxspec.training."):
        name = name.removeprefix("jaxspec.")
    while name and name not in known:
        name = name.rpartition(".")[0]
    return name or None


def find_longest_chain() -> list[str]:
    """Find the longest chain of modules in which each imports the next.

    Raises:
      CycleError: modules import one another in a circle.
    """
    imports = read_imports()
    tails: dict[str, list[str]] = {}
    for name in graphlib.TopologicalSorter(imports).static_order():  # what is imported comes first
        longest = max((tails[one] for one in sorted(imports[name])), key=len, default=[])
        tails[name] = [name, *longest]
    return max(tails.values(), key=len)


def count_imports() -> dict[str, int]:
    """Count the modules of the project that each one imports, most first."""
    counts = {name: len(found) for name, found in read_imports().items()}
    return dict(sorted(counts.items(), key=lambda item: -item[1]))
