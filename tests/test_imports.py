"""The packages import one another in one direction only, and heavy libraries only inside functions."""

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent

# What each part may import of the project's own modules, beside itself. Parts are matched by longest prefix.
KERNELS = {"pallas_kernels"}
TYPES = {"jaxspec.config", "jaxspec.state"}
ALGEBRA = TYPES | {"jaxspec.tree", "jaxspec.sampling"}
MODELS = ALGEBRA | {"jaxspec.cache", "jaxspec.verify", "jaxspec.attention"}
ALLOWED = {
    "pallas_kernels": set(),
    "jaxspec._distribution": set(),
    "jaxspec.config": set(),
    "jaxspec.state": {"jaxspec.config"},
    "jaxspec.tree": TYPES,
    "jaxspec.sampling": TYPES,
    "jaxspec.cache": ALGEBRA,
    "jaxspec.verify": ALGEBRA,
    "jaxspec.attention": ALGEBRA | KERNELS,
    "jaxspec.targets": MODELS,
    "jaxspec.drafters": MODELS | {"jaxspec.targets"},
    "jaxspec.builders": {"jaxspec.state", "jaxspec.tree"},
    "jaxspec.policies": {"jaxspec.config", "jaxspec.state", "jaxspec.tree"},
}
TOP = (
    "jaxspec.bench",
    "jaxspec.cli",
    "jaxspec.cli_bench",
    "jaxspec.cli_compare",
    "jaxspec.cli_draw",
    "jaxspec.cli_options",
    "jaxspec.cli_policies",
    "jaxspec.cli_report",
    "jaxspec.cli_sweep",
    "jaxspec.cli_tools",
    "jaxspec.show",
    "jaxspec.tools",
    "jaxspec.__main__",
)
LAZY = {"torch", "transformers", "matplotlib", "optax", "orbax", "tqdm", "tyro", "IPython"}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {
    module_name(path): path
    for package in ("jaxspec", "pallas_kernels", "training")
    for path in sorted((ROOT / package).rglob("*.py"))
}


def imports(tree: ast.AST, module: str, is_package: bool):
    """Yield (imported module, node) for every import statement; `from a import b` yields a.b when that is a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from ((alias.name, node) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                anchor = module.split(".")[: None if is_package and node.level == 1 else -node.level + is_package]
                base = ".".join([*anchor, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{base}.{alias.name}"
                yield (name if name in MODULES else base), node


def within(name: str, part: str) -> bool:
    return name == part or name.startswith(part + ".")


def part_of(module: str) -> str | None:
    return max((part for part in ALLOWED if within(module, part)), key=len, default=None)


def forbidden(module: str, imported: str) -> bool:
    """Whether `module` must not import `imported`, a module of the project."""
    if within(module, "training"):
        return False
    if within(imported, "training"):
        return True
    if any(within(module, top) for top in TOP):
        return False
    if any(within(imported, top) for top in TOP):
        return True
    part = part_of(module)
    return part is not None and not any(within(imported, allowed) for allowed in ALLOWED[part] | {part})


@pytest.mark.parametrize("module", MODULES)
def test_imports_point_one_way(module):
    path = MODULES[module]
    found = imports(ast.parse(path.read_text()), module, path.name == "__init__.py")
    own = [(name, node) for name, node in found if name.split(".")[0] in ("jaxspec", "pallas_kernels", "training")]
    wrong = [f"line {node.lineno}: {name}" for name, node in own if forbidden(module, name)]
    assert not wrong, f"{module} must not import {wrong}"


@pytest.mark.parametrize("module", [name for name in MODULES if not within(name, "training")])
def test_heavy_libraries_are_imported_inside_functions(module):
    tree = ast.parse(MODULES[module].read_text())
    inside = {child for f in ast.walk(tree) if isinstance(f, ast.FunctionDef | ast.AsyncFunctionDef) for child in ast.walk(f)}
    top_level = [name for name, node in imports(tree, module, False) if node not in inside]
    assert not {name.split(".")[0] for name in top_level} & LAZY


def test_rules():
    """The rules themselves: what they must allow and refuse."""
    assert forbidden("jaxspec.builders.chain", "jaxspec.drafters.block")
    assert forbidden("jaxspec.tree", "jaxspec.cache")
    assert forbidden("jaxspec.decode", "training.loop") and forbidden("jaxspec.decode", "jaxspec.bench.measure")
    assert forbidden("pallas_kernels.reference", "jaxspec.config")
    assert not forbidden("jaxspec.decode", "jaxspec.drafters.block")
    assert not forbidden("jaxspec.drafters.block", "jaxspec.targets.layers")
    assert not forbidden("training.loop", "jaxspec.decode")


@pytest.mark.parametrize(
    ("line", "module", "is_package", "expected"),
    [
        ("from jaxspec import tree", "jaxspec.decode", False, "jaxspec.tree" if "jaxspec.tree" in MODULES else "jaxspec"),
        ("from jaxspec.config import TargetConfig", "jaxspec.decode", False, "jaxspec.config"),
        ("from . import layers", "jaxspec.targets.moe", False, "jaxspec.targets.layers"),
        ("from .layers import Linear", "jaxspec.targets", True, "jaxspec.targets.layers"),
        ("from ..config import TargetConfig", "jaxspec.targets.moe", False, "jaxspec.config"),
        ("from ..config import TargetConfig", "jaxspec.targets", True, "jaxspec.config"),
    ],
)
def test_imported_names_are_resolved(line, module, is_package, expected):
    assert [name for name, _ in imports(ast.parse(line), module, is_package)] == [expected]
