import pytest

from jaxspec.bench.methods import parse_methods


def test_names_become_options():
    methods = parse_methods("dflash-chain, ar,jetspec-tree@16,my-own-ddtree", budget=32)
    assert [(method.name, method.options) for method in methods] == [
        ("ar", {"method": "ar"}),
        ("dflash-chain", {"method": "dflash", "builder": "chain", "budget": 32, "coupled": True}),
        ("jetspec-tree@16", {"method": "jetspec", "builder": "expand", "budget": 16, "coupled": True}),
        ("my-own-ddtree", {"method": "my-own", "builder": "best_first", "budget": 32, "coupled": True}),
    ]


def test_names_carry_scores_and_static_takes_the_paths():
    methods = parse_methods("a-tree+entropy,a-b-ddtree+hybrid0.25@9,a-beam+hybrid,a-static", budget=8, paths=[[0], [1]])
    assert [method.name for method in methods] == [
        "ar",
        "a-tree+entropy",
        "a-b-ddtree+hybrid0.25@9",
        "a-beam+hybrid",
        "a-static",
    ]
    wanted = [("a", "expand", 8), ("a-b", "best_first", 9), ("a", "beam", 8), ("a", "static", 3)]
    assert [tuple(m.options[what] for what in ("method", "builder", "budget")) for m in methods[1:]] == wanted
    scores = [(method.options.get("score"), method.options.get("entropy_weight")) for method in methods[1:]]
    assert scores == [("entropy", None), ("hybrid", 0.25), ("hybrid", None), (None, None)]
    assert [method.options.get("paths") for method in methods] == [None] * 4 + [[[0], [1]]]


def test_coupling():
    assert [method.name for method in parse_methods("a-tree", budget=8, coupled="both")] == ["ar", "a-tree", "a-tree/uncoupled"]
    assert [method.options["coupled"] for method in parse_methods("a-tree", budget=8, coupled="off")[1:]] == [False]


@pytest.mark.parametrize(
    "name", ["jetspec", "jetspec-bush", "-tree", "jetspec-tree@", "jetspec-tree@x", "a-tree+", "a-tree+entropy1"]
)
def test_unknown_methods(name):
    with pytest.raises(ValueError, match="unknown method"):
        parse_methods(name, budget=8)


def test_repeated_method():
    with pytest.raises(ValueError, match="listed twice"):
        parse_methods("a-tree,a-tree", budget=8)
