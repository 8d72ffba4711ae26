"""Stores of a process: values at the top of modules or classes that functions change."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

from house.modules import LIBRARIES, ROOT, list_modules, parse

_MAKERS = frozenset(
    ("dict", "list", "set", "deque", "defaultdict", "OrderedDict", "Counter", "ContextVar")
    + ("WeakKeyDictionary", "WeakValueDictionary", "WeakSet")
)
_LITERALS = (ast.Dict, ast.List, ast.Set, ast.DictComp, ast.ListComp, ast.SetComp)
_WRITERS = frozenset(
    ("add", "append", "appendleft", "clear", "discard", "extend", "insert", "move_to_end", "pop")
    + ("popitem", "popleft", "remove", "set", "setdefault", "update")
)
# Tables that parts are entered in by name, once, when they are imported or by a user.
REGISTRIES = frozenset(("_CONSTRUCTORS", "_FAMILIES", "_NAMED", "_RECORDS", "_TAGS"))
# What belongs to a process by its nature: threads, signal handlers, a bar on a terminal.
OF_PROCESS = ("jaxspec/core/runtime/", "jaxspec/io/progress.py:")


def find_stores() -> list[str]:
    """List the stores of the library and the kernels, registries apart: `path:line name`.

    A store is a name at the top of a module or class whose value is a dict, list, set or one of
    their kin, and that a function of any module writes to: by an item, a method or `global`. Names
    of any value count if a function declares them `global`. What `functools.cache` keeps does not.
    """
    paths = [path for folder in LIBRARIES for path in list_modules(folder)]
    written: dict[Path, set[str]] = {path: set(list_written(parse(path))) for path in paths}
    elsewhere = {name for names in written.values() for name in names if "." in name}
    found = []
    for path in paths:
        rebound = set(list_rebound(parse(path)))
        for name, node, container in list_values(parse(path)):
            short = name.rpartition(".")[2]
            by_others = f"{path.stem}.{name}" in elsewhere
            by_class = {f"self.{short}", f"cls.{short}", name} & written[path]
            own = container and (name in written[path] or by_others or "." in name and by_class)
            if (own or name in rebound) and name not in REGISTRIES:
                found.append(f"{path.relative_to(ROOT).as_posix()}:{node.lineno} {name}")
    return [one for one in found if not one.startswith(OF_PROCESS)]


def list_values(tree: ast.Module) -> Iterator[tuple[str, ast.stmt, bool]]:
    """List names that a module and its classes set, where, and whether to a container."""
    places = [("", tree), *((f"{n.name}.", n) for n in tree.body if isinstance(n, ast.ClassDef))]
    for prefix, place in places:
        for node in place.body:
            if isinstance(node, ast.Assign | ast.AnnAssign) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                for target in targets:
                    if isinstance(target, ast.Name):
                        yield prefix + target.id, node, is_container(node.value)


def is_container(value: ast.expr) -> bool:
    """Whether an expression makes a dict, list, set or one of their kin."""
    if isinstance(value, ast.Call):
        made = value.func
        name = made.attr if isinstance(made, ast.Attribute) else getattr(made, "id", "")
        return name in _MAKERS
    return isinstance(value, _LITERALS)


def list_functions(tree: ast.Module) -> Iterator[ast.AST]:
    """List the functions of a module, methods and inner ones included."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            yield node


def list_written(tree: ast.Module) -> Iterator[str]:
    """List dotted names whose items or members functions change, except names of their own."""
    for function in list_functions(tree):
        own = set(list_local(function))
        for node in ast.walk(function):
            for target in list_changed(node):
                name = write_dotted(target)
                if name and name.partition(".")[0] not in own:
                    yield name


def list_changed(node: ast.AST) -> Iterator[ast.expr]:
    """List the expressions whose value a statement or call changes in place."""
    if isinstance(node, ast.Assign | ast.Delete):
        yield from (one.value for one in node.targets if isinstance(one, ast.Subscript))
    elif isinstance(node, ast.AugAssign | ast.AnnAssign):
        yield node.target.value if isinstance(node.target, ast.Subscript) else node.target
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        yield from [node.func.value] if node.func.attr in _WRITERS else []


def list_local(function: ast.AST) -> Iterator[str]:
    """List the arguments and variables of a function; `self` and `cls` are none."""
    outer = {
        name for node in ast.walk(function) if isinstance(node, ast.Global) for name in node.names
    }
    for node in ast.walk(function):
        if isinstance(node, ast.arg) and node.arg not in ("self", "cls"):
            yield node.arg
        elif (
            isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id not in outer
        ):
            yield node.id


def list_rebound(tree: ast.Module) -> Iterator[str]:
    """List the names that functions declare `global`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Global):
            yield from node.names


def write_dotted(node: ast.expr) -> str:
    """Write a name with its attributes; empty for any other expression."""
    if isinstance(node, ast.Name):
        return node.id
    if isinstance(node, ast.Attribute):
        base = write_dotted(node.value)
        return f"{base}.{node.attr}" if base else ""
    return ""
