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


def test_coupling():
    assert [method.name for method in parse_methods("a-tree", budget=8, coupled="both")] == ["ar", "a-tree", "a-tree/uncoupled"]
    assert [method.options["coupled"] for method in parse_methods("a-tree", budget=8, coupled="off")[1:]] == [False]


@pytest.mark.parametrize("name", ["jetspec", "jetspec-bush", "-tree", "jetspec-tree@", "jetspec-tree@x"])
def test_unknown_methods(name):
    with pytest.raises(ValueError, match="unknown method"):
        parse_methods(name, budget=8)


def test_repeated_method():
    with pytest.raises(ValueError, match="listed twice"):
        parse_methods("a-tree,a-tree", budget=8)
