"""Figures of the project's own structure, printed by `make house` and checked by test_house.py."""

from __future__ import annotations

import ast
import functools
import re
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[2]
LIBRARY, TRAINING = ROOT / "jaxspec", ROOT / "training"
# Most of each figure; shares are least.
MOST_ENTRIES, MOST_NAMERS, LEAST_ANNOTATED = 19, 3, 0.95
MOST_TRACKED_MIB, MOST_WHEEL_MIB = 52.0, 38.0
MOST_README_LINES, MOST_PAGE_WORDS = 111, 22_000
# Pages that a user reads, reports of measurements apart.
PAGES = (
    "README.md",
    "docs/*.md",
    "jaxspec/zoo/*/README.md",
    "jaxspec/drafters/README.md",
    "jaxspec/policies/README.md",
    "training/**/*.md",
)


class Lengths(NamedTuple):
    """Median and maximum of lengths in lines, and what is longest."""

    median: float
    longest: int
    where: str


@functools.cache
def parse(path: Path) -> ast.Module:
    """Parse a Python file."""
    return ast.parse(path.read_text(encoding="utf-8"))


def list_modules(folder: Path = LIBRARY) -> list[Path]:
    """List the Python files below a folder."""
    return sorted(folder.rglob("*.py"))


def count_entries() -> int:
    """Count files and folders at the top of `jaxspec/` that git knows, and that one would open.

    Neither the marker of a typed package nor the other name of the folder `training` is.
    """
    listed = run_git("ls-files", "-co", "--exclude-standard", "jaxspec")
    found = {Path(line).parts[1] for line in listed if (ROOT / line).exists()}
    return len(found - {"py.typed", "training"})


def run_git(*arguments: str) -> list[str]:
    """Run git in the project: its lines."""
    out = subprocess.run(
        ["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout
    return out.splitlines()


# --- Who names a drafter or a builder.


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


def list_imports(tree: ast.Module, path: Path) -> Iterator[str]:
    """List the dotted names of the modules that a module imports, and of what is in them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parts = path.relative_to(ROOT).with_suffix("").parts[: -node.level]
                base = ".".join([*parts, *([node.module] if node.module else [])])
            yield from (base, *(f"{base}.{alias.name}" for alias in node.names))


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


# --- Annotations and lengths.


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


# --- Weight.


def measure_tracked() -> float:
    """MiB of all files that git tracks."""
    paths = (ROOT / line for line in run_git("ls-files"))
    return sum(path.stat().st_size for path in paths if path.is_file()) / 2**20


def measure_wheel() -> float | str:
    """MiB of a wheel built into a temporary folder, or the reason why there is none."""
    with tempfile.TemporaryDirectory() as folder:
        wheel = build_wheel(Path(folder))
        return wheel if isinstance(wheel, str) else wheel.stat().st_size / 2**20


def build_wheel(folder: Path) -> Path | str:
    """Build a wheel into a folder: its path, or the reason why there is none."""
    # A build leaves its own files in the source tree, so it works on a copy of what git tracks.
    source, built = folder / "source", folder / "built"
    for line in run_git("ls-files"):
        target = source / line
        target.parent.mkdir(parents=True, exist_ok=True)
        if (ROOT / line).is_file():
            target.write_bytes((ROOT / line).read_bytes())
    command = [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", str(source)]
    command += ["--wheel-dir", str(built)]
    done = subprocess.run(command, capture_output=True, text=True)
    wheels = list(built.glob("*.whl"))
    if done.returncode or not wheels:
        errors = [line.strip() for line in done.stderr.splitlines() if "rror" in line]
        return f"not built ({errors[-1] if errors else 'pip gave no reason'})"
    return wheels[0]


def count_readme_lines() -> int:
    """Count the lines of README.md."""
    return len((ROOT / "README.md").read_text(encoding="utf-8").splitlines())


def count_page_words() -> dict[str, int]:
    """Count what stands between blanks on each page for users, tables and code too."""
    paths = sorted(path for pattern in PAGES for path in ROOT.glob(pattern))
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in paths}
    return {name: len(text.split()) for name, text in texts.items()}


def main() -> None:
    """Print every figure with its limit."""
    print(f"entries at the top of jaxspec/: {count_entries()} (at most {MOST_ENTRIES})")
    for part, found in (("drafter", find_drafter_namers()), ("builder", find_builder_namers())):
        print(f"modules that name each {part} outside its own (at most {MOST_NAMERS}):")
        for name, modules in found.items():
            print(f"  {name}: {len(modules)}  {', '.join(modules)}")
    share = measure_annotated(LIBRARY / "call")
    print(f"annotated arguments in jaxspec/call: {share:.1%} (at least {LEAST_ANNOTATED:.0%})")
    print(f"tracked files: {measure_tracked():.1f} MiB (below {MOST_TRACKED_MIB:g})")
    wheel = measure_wheel()
    size = wheel if isinstance(wheel, str) else f"{wheel:.1f} MiB"
    print(f"wheel: {size} (below {MOST_WHEEL_MIB:g} MiB)")
    print(f"README: {count_readme_lines()} lines (below {MOST_README_LINES})")
    words = count_page_words()
    print(f"words of {len(words)} pages: {sum(words.values())} (at most {MOST_PAGE_WORDS})")
    for kind, lengths in (("module", measure_modules()), ("function", measure_functions())):
        median, longest, where = lengths
        print(f"lines of a {kind}: median {median:g}, longest {longest} ({where})")


if __name__ == "__main__":
    sys.path.insert(0, str(ROOT))
    main()
