"""The records of the library's own drafters agree with their folders and with each other."""

import ast
import functools
from pathlib import Path

import pytest

import jaxspec
from jaxspec.builders import list_names
from jaxspec.drafters import record_of, records
from training.drafters import records as trained_records
from training.drafters.model_options import ModelOptions

ROOT = Path(__file__).parents[2]
DRAFTERS = ROOT / "jaxspec" / "drafters"
NAMES = [record.name for record in records()]


def test_every_folder_has_a_record_with_a_page():
    folders = {path.parent.name for path in DRAFTERS.glob("*/__init__.py")}
    assert {record.page.split("/")[0] for record in records()} == folders
    for record in records():
        assert (DRAFTERS / record.page).read_text().startswith("# ")


def test_every_trainable_drafter_has_a_record():
    untrained = {"dflash2"}
    with_files = {record.name for record in records() if record.files is not None}
    assert {record.name for record in trained_records()} == with_files - untrained


def test_what_decoding_prefers_is_trained_by_default():
    assert ModelOptions().kind == min(records(), key=lambda record: record.preference).name
    assert ModelOptions().kind == "jetspec"


@pytest.mark.parametrize("name", NAMES)
def test_builders_of_a_record_exist(name):
    record = jaxspec.drafters.named(name)
    assert set(record.builders) <= set(list_names())
    assert record.default_builder in record.compared
    assert len(set(record.builders)) == len(record.builders)


def test_names_are_unique_and_others_are_refused():
    assert len(set(NAMES)) == len(NAMES)
    with pytest.raises(ValueError, match="unknown drafter 'oak': choose one of jetspec, dflash, "):
        jaxspec.drafters.named("oak")
    with pytest.raises(ValueError, match="no drafter has a config of type int"):
        record_of(3)


@functools.cache
def imports() -> dict[str, set[str]]:
    """Modules that each file of the library imports, except those of drafters, which may build on
    each other's networks.
    """
    folders = {DRAFTERS / one.page.split("/")[0] for one in records()}
    found = {}
    for path in (ROOT / "jaxspec").rglob("*.py"):
        if path.parent not in folders:
            nodes = list(ast.walk(ast.parse(path.read_text())))
            found[path.relative_to(ROOT).as_posix()] = {
                node.module for node in nodes if isinstance(node, ast.ImportFrom) and node.module
            } | {one.name for node in nodes if isinstance(node, ast.Import) for one in node.names}
    return found


def namers(record) -> set[str]:
    """Files that import from the drafter's folder."""
    package = f"jaxspec.drafters.{record.page.split('/')[0]}."
    return {
        path for path, names in imports().items() if any(f"{n}.".startswith(package) for n in names)
    }


@pytest.mark.parametrize("name", NAMES)
def test_few_modules_name_a_drafter(name):
    assert len(namers(jaxspec.drafters.named(name))) <= 3, namers(jaxspec.drafters.named(name))
