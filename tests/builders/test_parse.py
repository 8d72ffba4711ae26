"""Strings become builders in one place, and every builder spells itself."""

import dataclasses
import json
from typing import ClassVar

import pytest

from jaxspec import builders
from jaxspec.builders import parse_builder


@pytest.mark.parametrize(
    ("text", "builder", "spelling"),
    [
        ("chain", builders.chain(), None),
        ("best_first", builders.best_first(), None),
        ("best_first+hybrid0.3", builders.best_first("hybrid", 0.3), None),
        ("best_first+hybrid", builders.best_first("hybrid"), "best_first+hybrid0.1"),
        ("expand+logprob", builders.expand(), "expand"),
        ("expand/w3/fanout=top2gap", builders.expand(3, "top2gap"), None),
        ("expand/width=3", builders.expand(3), "expand/w3"),
        (
            'expand/fanout={"rule":"top2gap","beta":2.0}',
            builders.expand(fanout=builders.make_fanout("top2gap", beta=2.0)),
            None,
        ),
        ("beam+entropy/w4", builders.beam(4, "entropy"), None),
        ("static", builders.static(), None),
        (
            "static/paths=[[0],[1],[0,0]]",
            builders.static([[0], [0, 0], [1]]),
            "static/paths=[[0],[0,0],[1]]",
        ),
        ("dynamic/w5", builders.dynamic(5), None),
        ("lattice/w8/candidates=16", builders.lattice(8, 16), None),
        (
            "rank_guided/classes=default/starts=3",
            builders.rank_guided(classes="default", starts=3),
            "rank_guided/classes=default/starts=3",
        ),
        (
            "rank_guided/classes=[2,4,6,4]/w8",
            builders.rank_guided(8, [2, 4, 6, 4]),
            "rank_guided/w8/classes=[2,4,6,4]",
        ),
        (
            "rank_guided/keep_duplicates=true",
            builders.rank_guided(keep_duplicates=True),
            "rank_guided/keep_duplicates=true",
        ),
    ],
)
def test_a_builder_has_a_spelling(text, builder, spelling):
    assert parse_builder(text) == builder
    assert str(builder) == (spelling or text)
    assert parse_builder(str(builder)) == builder


def test_a_tree_from_a_file(tmp_path):
    file = tmp_path / "tree.json"
    file.write_text(json.dumps([[0], [1]]))
    assert parse_builder(f"static/paths={file}") == builders.static([[0], [1]])
    file.write_text("[[0],")
    with pytest.raises(ValueError, match="paths is not JSON"):
        parse_builder(f"static/paths={file}")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "fan",
            "unknown builder 'fan': choose one of chain, best_first, expand, beam, static, dyn",
        ),
        ("ddtree", "unknown builder 'ddtree': did you mean 'best_first'"),
        ("tree/w3", "unknown builder 'tree': did you mean 'expand'"),
        ("chain/w3", "builder 'chain' has no setting 'width': choose one of score"),
        ("best_first/w3", "'best_first' has no setting 'width': choose one of score, entropy_w"),
        ("dynamic+entropy", "builder 'dynamic' has no setting 'score': choose one of width"),
        (
            "expand+depth",
            r"unknown score 'depth' in 'expand\+depth': write \+logprob, \+entropy, \+hybrid0.3, or",
        ),
        ("expand+entropy0.3", "unknown score 'entropy0.3'"),
        ("expand/w0", "width is 0: give a whole number of at least 1"),
        ("expand/width=wide", "width is 'wide': give a whole number of at least 1"),
        ("expand/width=true", "width is True: give a whole number"),
        ("expand/q3", "unknown setting /q3 in 'expand/q3': write /w3 for width=3, or /name=value"),
        ("expand/w3/width=4", "gives width twice: give it once"),
        ("expand/fanout=wide", "unknown fan-out rule 'wide': choose one of top2gap"),
        ("static/paths=[[0],[1,0]]", r"path \[1, 0\] has no parent: list \[1\] too"),
        ("static/paths=[[0]", "paths is not JSON"),
        ("rank_guided/classes=wide", "unknown classes 'wide': choose one of default, slim"),
        ("", "unknown builder ''"),
    ],
)
def test_wrong_spellings(text, message):
    with pytest.raises(ValueError, match=message) as error:
        parse_builder(text)
    assert "\n" not in str(error.value)


def test_values_pass_and_other_things_do_not():
    assert builders.make_builder("chain") == builders.make_builder(builders.chain())
    with pytest.raises(TypeError, match="builder is 3: give a name such as 'chain' or a value of"):
        builders.make_builder(3)


@dataclasses.dataclass(frozen=True)
class Oak(builders.Builder):
    name: ClassVar[str] = "oak"
    width: int = 2


@pytest.fixture
def oak():
    builders.register("oak", Oak)
    yield
    builders.unregister("oak")


def test_a_builder_of_ones_own_is_found_by_name(oak):
    assert parse_builder("oak/w4") == Oak(4) and str(Oak(4)) == "oak/w4"
    assert "oak" in builders.list_names()
    with pytest.raises(ValueError, match="builder name 'oak' is taken: choose another"):
        builders.register("oak", Oak)


def test_names_that_no_spelling_could_hold():
    for name in ("Oak", "o-ak", "o+ak", ""):
        with pytest.raises(ValueError, match="write it in small letters, digits and underscores"):
            builders.register(name, Oak)
    with pytest.raises(ValueError, match="no builder is called 'oak': choose one of chain"):
        builders.unregister("oak")
