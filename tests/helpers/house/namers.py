"""Who names a drafter or a builder outside its own modules."""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from house.modules import LIBRARY, ROOT, TRAINING, list_imports, list_modules, parse


def find_drafter_namers() -> dict[str, list[str]]:
    """Find modules that name each drafter outside its two places: {drafter: module paths}.

    The places are its folder in `jaxspec/drafters` and its folder or file in `training/drafters`. A
    module names a drafter if it imports from there, uses its config class or maker, or compares or
    looks up its name. The two registries do. Modules of other drafters, which may build on this
    one's network, do not count.
    """
    from jaxspec.drafters import records

    folders = {record.name: (LIBRARY / "drafters" / record.page).parent for record in records()}
    places = {name: list_places(folder) for name, folder in folders.items()}
    everywhere = {path for own in places.values() for path in own}
    found = {}
    for name, own in places.items():
        packages = [f"{top}.drafters.{folders[name].name}" for top in ("jaxspec", "training")]
        namers = list_namers(own, packages, name, [LIBRARY, TRAINING])
        found[name] = [path for path in namers if ROOT / path not in everywhere]
    return found


def list_places(folder: Path) -> list[Path]:
    """List a drafter's modules: those of its folder in the library, and its own in training."""
    trained = TRAINING / "drafters" / folder.name
    file = trained.with_suffix(".py")
    return [*list_modules(folder), *list_modules(trained), *([file] if file.is_file() else [])]


def find_builder_namers() -> dict[str, list[str]]:
    """Find modules that name each builder outside its own module: {builder: module paths}."""
    found = {}
    for name in list_builders():
        path = next((LIBRARY / "builders").rglob(f"{name}.py"))
        package = ".".join(path.relative_to(ROOT).with_suffix("").parts)
        found[name] = list_namers([path], [package], name, [LIBRARY])
    return found


def list_builders() -> list[str]:
    """List the names of the library's builders."""
    from jaxspec import builders

    return builders.list_names()


def list_namers(own: list[Path], packages: list[str], name: str, folders: list[Path]) -> list[str]:
    """List modules below `folders` that name a part, other than its own.

    Args:
      own: the part's modules. packages: the dotted names that its modules are imported by.
      name: the part's name as users write it. `zoo/` may hold it, as data about checkpoints.
      folders: where to look.
    """
    defined = {one for path in own for one in list_definitions(path)}
    found = []
    for path in (path for folder in folders for path in list_modules(folder)):
        if path in own:
            continue
        strings, names, imported = read_names(path)
        where = path.relative_to(ROOT).as_posix()
        written = not where.startswith("jaxspec/zoo/") and name in strings
        comes = any(comes_from(imported, package) for package in packages)
        if written or comes or not defined.isdisjoint(names):
            found.append(where)
    return found


def list_definitions(path: Path) -> Iterator[str]:
    """List the config classes and makers that a module defines."""
    for node in parse(path).body:
        if (
            isinstance(node, ast.ClassDef)
            and node.name.endswith("Config")
            or isinstance(node, ast.FunctionDef)
            and re.match(r"make_\w+_drafter", node.name)
        ):
            yield node.name


# Read once for all parts: there are hundreds of modules.
@functools.cache
def read_names(path: Path) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Read the strings that a module compares, the names that it uses and what it imports."""
    tree = parse(path)
    strings, names = list_compared_strings(tree), list_used_names(tree)
    return frozenset(strings), frozenset(names), frozenset(list_imports(tree, path))


def comes_from(imported: Iterable[str], package: str) -> bool:
    """Whether one of the imported names is a package or something in it."""
    return any(f"{name}.".startswith(f"{package}.") for name in imported)


def list_used_names(tree: ast.Module) -> Iterator[str]:
    """List the names, attributes and imported names that a module uses."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name):
            yield node.id
        elif isinstance(node, ast.Attribute):
            yield node.attr
        elif isinstance(node, ast.alias):
            yield node.name


def list_compared_strings(tree: ast.Module) -> Iterator[str]:
    """List strings that a module compares, looks up, or keeps in tables and constants.

    These are sides of comparisons, subscripts, keys and values of tables, cases of `match`,
    defaults of parameters and options, and constants. Docstrings, messages and arguments of other
    calls do not count.
    """
    for node in ast.walk(tree):
        for part in list_naming_parts(node):
            if isinstance(part, ast.Tuple | ast.List | ast.Set):
                yield from (one.value for one in part.elts if is_text(one))
            elif is_text(part):
                yield part.value


def list_naming_parts(node: ast.AST) -> list[ast.AST | None]:
    """List the expressions of a node in which a string literal decides something."""
    if isinstance(node, ast.Compare):
        return [node.left, *node.comparators]
    if isinstance(node, ast.Subscript):
        return [node.slice]
    if isinstance(node, ast.Dict):
        return [*node.keys, *node.values]
    if isinstance(node, ast.MatchValue):
        return [node.value]
    if isinstance(node, ast.arguments):
        return [*node.defaults, *node.kw_defaults]
    if isinstance(node, ast.Assign | ast.AnnAssign):
        return [node.value]
    if isinstance(node, ast.keyword) and node.arg in ("default", "choices", "builder", "drafter"):
        return [node.value]
    looked_up = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
    if looked_up and node.func.attr in ("get", "pop", "named"):
        return node.args[:1]
    return []


def is_text(node: ast.AST | None) -> bool:
    """Whether an expression is a string literal."""
    return isinstance(node, ast.Constant) and isinstance(node.value, str)
