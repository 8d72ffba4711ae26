"""Packages import one another in one direction only; heavy libraries load inside functions."""

import ast
import functools
import itertools
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
WINGS = ("jaxspec", "pallas_kernels", "training", "benchmarks")

# What each package may import from the project's other packages. `benchmarks` may import them all,
# `training` all but `benchmarks` and `jaxspec.bench`.
BASE = {"jaxspec.core", "jaxspec.io", "pallas_kernels"}
MODELS = BASE | {"jaxspec.targets", "jaxspec.drafters"}
ROUND = MODELS | {"jaxspec.builders", "jaxspec.costs", "jaxspec.policies", "jaxspec.acceptance"}
CALL = ROUND | {"jaxspec.round"}
TUNER = CALL | {"jaxspec.call"}
ENGINE = TUNER | {"jaxspec.tuner", "jaxspec.api"}
ALLOWED = {
    "pallas_kernels": set(),
    "jaxspec.core": set(),
    "jaxspec.io": {"jaxspec.core"},
    "jaxspec.targets": BASE,
    "jaxspec.drafters": MODELS,
    "jaxspec.builders": {"jaxspec.core", "pallas_kernels"},
    "jaxspec.costs": {"jaxspec.core", "jaxspec.io"},
    "jaxspec.policies": {"jaxspec.core", "jaxspec.io", "jaxspec.costs"},
    "jaxspec.acceptance": BASE,
    "jaxspec.round": ROUND,
    "jaxspec.call": CALL,
    "jaxspec.tuner": TUNER,
    "jaxspec.api": TUNER | {"jaxspec.tuner"},
    "jaxspec.view": ENGINE,
    "jaxspec.zoo": ENGINE,
    "jaxspec.adapt": ENGINE | {"jaxspec.serve"},
    "jaxspec.serve": ENGINE,
    "jaxspec.bench": ENGINE | {"jaxspec.adapt", "jaxspec.view", "jaxspec.zoo", "jaxspec.serve"},
    "jaxspec.training": {"jaxspec.core"},  # a clone's name for the folder `training`
    "jaxspec.cli": ENGINE
    | {"jaxspec.adapt", "jaxspec.view", "jaxspec.zoo", "jaxspec.serve", "jaxspec.bench"},
}
LAZY = {"torch", "transformers", "matplotlib", "optax", "orbax", "tqdm", "tyro", "IPython"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path for wing in WINGS for path in sorted((ROOT / wing).rglob("*.py"))
}


def package_of(module: str) -> str:
    """The folder that a module is in, dotted."""
    own = MODULES[module].name == "__init__.py"
    return module if own else module.rpartition(".")[0]


def imports(tree: ast.AST, module: str, is_package: bool):
    """Yield (imported module, node) for every import statement.

    `from a import b` yields a.b where that is a module.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                up = None if is_package and node.level == 1 else -node.level + is_package
                base = ".".join([*module.split(".")[:up], *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield (name if name in MODULES else base), node


@functools.cache
def parse(module: str) -> ast.AST:
    return ast.parse(MODULES[module].read_text())


@functools.cache
def own_imports(module: str) -> list[tuple[str, ast.AST]]:
    """(imported module of the project, node) of all import statements."""
    found = imports(parse(module), module, MODULES[module].name == "__init__.py")
    return [(name, node) for name, node in found if name.split(".")[0] in WINGS]


def within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


def forbidden(module: str, imported: str) -> bool:
    """Whether `module` must not import `imported`, a module of the project."""
    if within(module, "benchmarks"):
        return False
    if within(imported, "benchmarks"):
        return True
    if within(module, "training"):
        return within(imported, "jaxspec.bench")
    # The public interface, what runs it, and the command line's own imports.
    if module in ("jaxspec", "jaxspec.__main__"):
        return within(imported, "training")
    own = next(package for package in ALLOWED if within(module, package))
    if imported == "jaxspec":
        return own not in ("jaxspec.bench", "jaxspec.cli", "jaxspec.view")
    return not any(within(imported, package) for package in ALLOWED[own] | {own})


def test_imports_point_one_way():
    wrong = [
        f"{module}, line {node.lineno}: must not import {name}"
        for module in MODULES
        for name, node in own_imports(module)
        if forbidden(module, name)
    ]
    assert not wrong, "\n".join(wrong)


def package_cycles(arrows: dict[tuple[str, str], str]) -> list[str]:
    """Pairs of packages that reach each other; one inside the other is no pair."""
    packages = sorted({name for pair in arrows for name in pair})
    reach = {name: {b for a, b in arrows if a == name} for name in packages}
    for middle, start in itertools.product(packages, packages):
        if middle in reach[start]:
            reach[start] |= reach[middle]
    return [
        f"{a} and {b}"
        for a, b in itertools.combinations(packages, 2)
        if b in reach[a] and a in reach[b] and not within(a, b) and not within(b, a)
    ]


def wing_of(module: str) -> str:
    """jaxspec.call, training.rl, pallas_kernels, …: the packages that a reader sees first."""
    parts = package_of(module).split(".")
    return ".".join(parts[:2])


def arrows(level) -> dict[tuple[str, str], str]:
    found = {}
    for module in MODULES:
        for name, _ in own_imports(module):
            if name not in MODULES or name == "jaxspec":
                continue
            a, b = level(module), level(name)
            if not within(a, b) and not within(b, a):
                found[a, b] = f"{module} imports {name}"
    return found


def test_no_two_packages_import_each_other():
    assert not package_cycles(arrows(wing_of))


def test_no_two_folders_import_each_other():
    """Folders inside packages too, such as bench/latency and bench/report."""
    found = arrows(package_of)
    assert not [f"{a}: {found[a, b]}; {found[b, a]}" for a, b in found if (b, a) in found]


def heavy_imports(module: str) -> set[str]:
    """Heavy libraries that a module imports outside of its functions."""
    tree = parse(module)
    functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef | ast.AsyncFunctionDef)]
    inside = {child for function in functions for child in ast.walk(function)}
    top_level = [name for name, node in imports(tree, module, False) if node not in inside]
    return {name.split(".")[0] for name in top_level} & LAZY


def test_heavy_libraries_are_imported_inside_functions():
    wings = ("training", "benchmarks")
    modules = [name for name in MODULES if not any(within(name, wing) for wing in wings)]
    assert not {module: heavy for module in modules if (heavy := heavy_imports(module))}


def test_rules():
    """The rules themselves: what they must allow and refuse."""
    assert forbidden("jaxspec.builders.chain", "jaxspec.drafters.registry")
    assert forbidden("jaxspec.core.tree", "jaxspec.round.loop")
    assert forbidden("jaxspec.round.loop", "training.run.loop")
    assert forbidden("jaxspec.round.loop", "jaxspec.bench.measure.decodes")
    assert forbidden("jaxspec.policies.store", "jaxspec.round.loop")
    assert forbidden("pallas_kernels.reference", "jaxspec.core.config")
    assert not forbidden("jaxspec.round.loop", "jaxspec.drafters.registry")
    assert not forbidden("jaxspec.drafters.dflash.drafter", "jaxspec.targets.layers")
    assert forbidden("training.acceptance", "jaxspec.bench.measure.decodes")
    assert not forbidden("training.run.loop", "jaxspec.round.loop")
    assert forbidden("training.run.loop", "benchmarks.shorten")
    assert forbidden("jaxspec.cli.main", "benchmarks.shorten")
    assert not forbidden("benchmarks.shorten", "training.run.loop")


def test_cycles_are_found():
    loop = {("a", "b"): "", ("b", "c"): "", ("c", "a"): ""}
    assert package_cycles(loop) == ["a and b", "a and c", "b and c"]
    assert not package_cycles({("a", "b"): "", ("b", "c"): "", ("a", "c"): ""})


@pytest.mark.parametrize(
    ("line", "module", "is_package", "expected"),
    [
        ("from jaxspec.core import tree", "jaxspec.round.loop", False, "jaxspec.core.tree"),
        ("from jaxspec.core.config import X", "jaxspec.round.loop", False, "jaxspec.core.config"),
        ("from . import layers", "jaxspec.targets.moe", False, "jaxspec.targets.layers"),
        ("from .layers import Linear", "jaxspec.targets", True, "jaxspec.targets.layers"),
        ("from ..core.config import X", "jaxspec.targets.moe", False, "jaxspec.core.config"),
        ("from ..core.config import X", "jaxspec.targets", True, "jaxspec.core.config"),
    ],
)
def test_imported_names_are_resolved(line, module, is_package, expected):
    assert [name for name, _ in imports(ast.parse(line), module, is_package)] == [expected]


# Modules that multiply by weights, or hand them on, and do not know how these lie.
BLIND = ("drafters", "serve", "adapt", "call", "round", "builders", "policies", "acceptance")
LAYOUT_NAMES = ("panel", "transposed cop", "layouts.copies", "layouts.quant", "'quant'", '"quant"')


def test_layouts_are_known_to_products_and_the_tuner():
    """Drafters, the transformer, serving and adaptation name no layout of weights."""
    blind = {f"jaxspec.{name}" for name in BLIND}
    blind |= {"jaxspec.targets.transformer", "jaxspec.targets.layers"}
    modules = [name for name in MODULES if any(within(name, one) for one in blind)]
    found = [
        f"{module} says {word}"
        for module in modules
        for word in LAYOUT_NAMES
        if word.lower() in MODULES[module].read_text().lower()
    ]
    assert not found and len(modules) > 150, "\n".join(found)
