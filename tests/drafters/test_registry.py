"""The records of the library's own drafters agree with their folders and with each other."""

import ast
from pathlib import Path

import pytest

import jaxspec
from jaxspec.builders import list_names
from jaxspec.drafters import record_of, records
from training.methods import METHODS

ROOT = Path(__file__).parents[2]
DRAFTERS = ROOT / "jaxspec" / "drafters"
NAMES = [record.name for record in records()]


def test_every_folder_has_a_record_with_a_page():
    folders = {path.parent.name for path in DRAFTERS.glob("*/__init__.py")}
    assert {record.page.split("/")[0] for record in records()} == folders
    for record in records():
        assert (DRAFTERS / record.page).read_text().startswith("# ")


def test_every_trainable_drafter_has_a_record():
    untrained = {"dflash2"}  # the objective is not published
    with_files = {record.name for record in records() if record.files is not None}
    assert set(METHODS) == with_files - untrained


@pytest.mark.parametrize("name", NAMES)
def test_builders_of_a_record_exist(name):
    record = jaxspec.drafters.named(name)
    assert set(record.builders) <= set(list_names(aliases=False))
    assert record.default_builder in record.compared
    assert len(set(record.builders)) == len(record.builders)


def test_names_are_unique_and_others_are_refused():
    assert len(set(NAMES)) == len(NAMES)
    with pytest.raises(ValueError, match="unknown drafter 'oak': choose one of jetspec, dflash, "):
        jaxspec.drafters.named("oak")
    with pytest.raises(ValueError, match="no drafter has a config of type int"):
        record_of(3)


def namers(record) -> set[str]:
    """Modules of the library that import from the drafter's folder, except those of drafters, which
    may build on its network.
    """
    folder = record.page.split("/")[0]
    folders = {DRAFTERS / one.page.split("/")[0] for one in records()}
    found = set()
    for path in (ROOT / "jaxspec").rglob("*.py"):
        if path.parent in folders:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            module = node.module if isinstance(node, ast.ImportFrom) else None
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            package = f"jaxspec.drafters.{folder}"
            if any(f"{name or ''}.".startswith(package + ".") for name in [module, *names]):
                found.add(path.relative_to(ROOT).as_posix())
    return found


@pytest.mark.parametrize("name", NAMES)
def test_few_modules_name_a_drafter(name):
    assert len(namers(jaxspec.drafters.named(name))) <= 3, namers(jaxspec.drafters.named(name))
