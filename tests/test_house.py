"""The project keeps its structure: the figures of tests/helpers/house.py, without the wheel."""

import ast

import house
import pytest


def test_few_entries_at_the_top():
    assert house.count_entries() <= house.MOST_ENTRIES


# Names are no parameters: every process that collects tests would read all modules for the names.
@pytest.mark.parametrize("find", [house.find_drafter_namers, house.find_builder_namers])
def test_few_modules_name_a_drafter_or_a_builder(find):
    found = find()
    assert found
    assert not {name: by for name, by in found.items() if len(by) > house.MOST_NAMERS}


def test_training_is_searched_for_names_of_drafters():
    registry = {"jaxspec/drafters/registry.py", "training/drafters/registry.py"}
    found = house.find_drafter_namers()
    untrained = {"dflash2", "prompt_lookup"}
    assert all(registry <= set(by) for name, by in found.items() if name not in untrained)


def test_the_engine_is_annotated():
    assert house.measure_annotated(house.LIBRARY / "call") >= house.LEAST_ANNOTATED


def test_the_readme_is_short():
    assert house.count_readme_lines() < house.MOST_README_LINES


def test_the_pages_are_short():
    words = house.count_page_words()
    assert {"README.md", "docs/options.md", "training/rl/README.md"} <= set(words)
    assert sum(words.values()) <= house.MOST_PAGE_WORDS


def test_modules_and_functions_are_short():
    assert house.measure_modules().median <= 150 and house.measure_functions().median <= 12


def test_tracked_files_are_light():
    assert house.measure_tracked() < house.MOST_TRACKED_MIB


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ('"""Of eagle3."""\nraise ValueError("eagle3")', set()),
        ('if name == "eagle3": pass', {"eagle3"}),
        ('if name in ("eagle3", "x"): pass', {"eagle3", "x"}),
        ('TABLE = {"eagle3": 1}\nTABLE["y"]', {"eagle3", "y"}),
        ('def f(method="eagle3"): pass', {"eagle3"}),
        ('add("--drafter", default="eagle3")', {"eagle3"}),
        ('records.get("eagle3", 1)', {"eagle3"}),
    ],
)
def test_names_are_counted_where_they_decide(code, found):
    assert set(house.list_compared_strings(ast.parse(code))) == found


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from jaxspec.drafters.eagle3.files import FORMAT", True),
        ("import jaxspec.drafters.eagle3", True),
        ("from jaxspec.drafters import eagle3", True),
        ("from .eagle3 import EAGLE3", True),
        ("from jaxspec.drafters import eagle30", False),
        ("from jaxspec.drafters.registry import records", False),
    ],
)
def test_imports_of_a_part_are_found(line, found):
    path = house.LIBRARY / "drafters" / "registry.py"
    imported = house.list_imports(ast.parse(line), path)
    assert house.comes_from(imported, "jaxspec.drafters.eagle3") is found
