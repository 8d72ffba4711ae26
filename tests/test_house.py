"""The project keeps its structure: the figures of tests/helpers/house, without the wheel."""

import ast
import sys

import pytest
from house import chains, lengths, limits, modules, namers, rooms, stores, weight


def test_few_entries_at_the_top():
    assert lengths.count_entries() <= limits.MOST_ENTRIES


# Names are no parameters: every process that collects tests would read all modules for the names.
@pytest.mark.parametrize("find", [namers.find_drafter_namers, namers.find_builder_namers])
def test_few_modules_name_a_drafter_or_a_builder(find):
    found = find()
    assert found
    assert not {name: by for name, by in found.items() if len(by) > limits.MOST_NAMERS}


def test_training_is_searched_for_names_of_drafters():
    registry = {"jaxspec/drafters/registry.py", "training/drafters/registry.py"}
    found = namers.find_drafter_namers()
    untrained = {"dflash2", "prompt_lookup", "suffix"}
    assert all(registry <= set(by) for name, by in found.items() if name not in untrained)


def test_the_engine_is_annotated():
    assert lengths.measure_annotated(modules.LIBRARY / "call") >= limits.LEAST_ANNOTATED


def test_the_readme_is_short():
    assert weight.count_readme_lines() < limits.MOST_README_LINES


def test_the_pages_are_short():
    words = weight.count_page_words()
    assert {"README.md", "docs/options.md", "training/rl/README.md"} <= set(words)
    assert sum(words.values()) <= limits.MOST_PAGE_WORDS


def test_modules_and_functions_are_short():
    assert lengths.measure_modules().median <= 150 and lengths.measure_functions().median <= 12


def test_tracked_files_are_light():
    assert weight.measure_tracked() < limits.MOST_TRACKED_MIB


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
    assert set(namers.list_compared_strings(ast.parse(code))) == found


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
    path = modules.LIBRARY / "drafters" / "registry.py"
    imported = modules.list_imports(ast.parse(line), path)
    assert namers.comes_from(imported, "jaxspec.drafters.eagle3") is found


def test_the_package_is_small():
    files, lines = lengths.count_installed()
    assert files <= limits.MOST_FILES and lines <= limits.MOST_LINES
    folders = lengths.count_by_folder()
    assert sum(folders.values()) == files
    assert max(folders.values()) <= limits.MOST_FILES_IN_FOLDER


def test_ways_of_imports_are_short():
    assert max(chains.count_imports().values()) <= limits.MOST_IMPORTS
    chain = chains.find_longest_chain()
    assert 2 < len(chain) <= limits.LONGEST_CHAIN
    assert all(
        other in chains.read_imports()[one] for one, other in zip(chain, chain[1:], strict=False)
    )


def test_few_stores():
    found = stores.find_stores()
    assert len(found) <= limits.MOST_STORES, found
    assert any("jaxspec/tuner/" in one for one in found)


@pytest.mark.thorough
def test_params_pass_few_rooms():
    entered, visits = rooms.trace_rooms()
    assert len(entered) <= limits.MOST_ROOMS and len(visits) <= limits.MOST_VISITS
    found = {visit.room for visit in visits}
    assert {"jaxspec/round/loop.py", "jaxspec/targets/transformer.py"} <= found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("KEPT = {}\ndef f():\n    KEPT[1] = 2", {"KEPT"}),
        ("KEPT = []\ndef f():\n    KEPT.append(2)", {"KEPT"}),
        ("KEPT = WeakKeyDictionary()\ndef f():\n    del KEPT[1]", {"KEPT"}),
        ("kept = None\ndef f():\n    global kept\n    kept = 1", {"kept"}),
        ("class A:\n    kept = {}\n    def f(self):\n        self.kept[1] = 2", {"A.kept"}),
        ("TABLE = {1: 2}\ndef f():\n    return TABLE[1]", set()),
        ("KEPT = {}\ndef f(KEPT):\n    KEPT[1] = 2", set()),
        ("KEPT = {}\nKEPT[1] = 2", set()),
    ],
)
def test_stores_are_what_functions_write_to(code, found, tmp_path, monkeypatch):
    (tmp_path / "module.py").write_text(code)
    monkeypatch.setattr(stores, "ROOT", tmp_path)
    monkeypatch.setattr(stores, "LIBRARIES", (tmp_path,))
    assert {one.split()[1] for one in stores.find_stores()} == found


def test_a_visit_is_a_line_that_enters_another_room(tmp_path, monkeypatch):
    class Params:
        pass

    (tmp_path / "a.py").write_text("def f(p, g):\n    for _ in range(3):\n        g(p)\n    g(0)")
    (tmp_path / "b.py").write_text("def g(p):\n    return h(p)\ndef h(p):\n    return p")
    monkeypatch.setattr(rooms, "_FOLDERS", (str(tmp_path),))
    monkeypatch.setattr(rooms, "ROOT", tmp_path)
    spaces = [{}, {}]
    for name, space in zip("ab", spaces, strict=True):
        path = tmp_path / f"{name}.py"
        exec(compile(path.read_text(), str(path), "exec"), space)
    tracer = rooms.Tracer(Params)
    before = sys.getprofile()
    sys.setprofile(tracer)
    try:
        spaces[0]["f"](Params(), spaces[1]["g"])
    finally:
        sys.setprofile(before)
    assert tracer.rooms == {"a.py", "b.py"}
    assert tracer.visits == {("a.py", "f", "", 0), ("b.py", "g", "a.py", 3)}
