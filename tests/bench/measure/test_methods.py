import dataclasses
import json

import pytest

from jaxspec.bench.measure.methods import parse_methods
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Spec
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.eagle3.network import EagleConfig
from jaxspec.drafters.falcon.network import FalconConfig
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.store import save_policy

SIZES = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
DRAFTERS = (
    ("block", BlockDrafterConfig(**SIZES, block_size=4, vocab_size=40)),
    ("eagle3", EagleConfig(**SIZES, vocab_size=40)),
    ("falcon", FalconConfig(**SIZES, lstm_size=4, vocab_size=40)),
)
SPEC = Spec(TargetConfig(**SIZES, vocab_size=40), DRAFTERS)


def test_names_become_options():
    methods = parse_methods("dflash-chain, ar,jetspec-expand@16,my-own-best_first", budget=32)
    assert [(method.name, method.options) for method in methods] == [
        ("ar", {"drafter": "ar"}),
        ("dflash-chain", {"drafter": "dflash", "builder": "chain", "budget": 32, "coupled": True}),
        (
            "jetspec-expand@16",
            {"drafter": "jetspec", "builder": "expand", "budget": 16, "coupled": True},
        ),
        (
            "my-own-best_first",
            {"drafter": "my-own", "builder": "best_first", "budget": 32, "coupled": True},
        ),
    ]


def test_names_carry_scores_and_settings():
    names = [
        "a-expand+entropy",
        "a-b-best_first+hybrid0.25@9",
        "a-beam+hybrid",
        "a-static/paths=[[0],[1]]",
        'a-expand/w3/fanout={"rule":"top2gap","beta":2.0}',
        "chain-chain",
    ]
    methods = parse_methods(",".join(names), budget=8)
    assert [method.name for method in methods] == ["ar", *names]
    assert [
        tuple(m.options[what] for what in ("drafter", "builder", "budget")) for m in methods[1:]
    ] == [
        ("a", "expand+entropy", 8),
        ("a-b", "best_first+hybrid0.25", 9),
        ("a", "beam+hybrid0.1", 8),
        ("a", "static/paths=[[0],[1]]", 8),
        ("a", 'expand/w3/fanout={"rule":"top2gap","beta":2.0}', 8),
        ("chain", "chain", 8),
    ]
    json.dumps([method.options for method in methods])


def test_a_setting_mixes_prompt_lookup_in():
    names = "j-expand@4/lookup,j-best_first/d3/lookup,j-expand@4/lookup/best,j-chain"
    methods = parse_methods(names, budget=9)
    found = [(one.options.get("lookup"), one.options.get("depth")) for one in methods[1:]]
    assert found == [(True, None), (True, 3), (True, None), (None, None)]
    assert methods[3].options["policy"] == "best" and methods[1].name == "j-expand@4/lookup"
    (_, suffix) = parse_methods("j-expand@4/w3/suffix", budget=9)
    assert suffix.options["lookup"] == "suffix" and suffix.options["builder"] == "expand/w3"
    with pytest.raises(ValueError, match="lookups"):
        parse_methods("j-expand@4/lookups", budget=9)


def test_names_carry_depth_and_widths():
    methods = parse_methods(
        "eagle3-dynamic@12/w4/d6,s-rank_guided/d8,j-expand+entropy/b8", budget=9
    )[1:]
    assert [method.options for method in methods] == [
        {
            "drafter": "eagle3",
            "builder": "dynamic/w4",
            "budget": 12,
            "coupled": True,
            "depth": 6,
        },
        {"drafter": "s", "builder": "rank_guided", "budget": 9, "coupled": True, "depth": 8},
        {
            "drafter": "j",
            "builder": "expand+entropy",
            "budget": 9,
            "coupled": True,
            "block_size": 8,
        },
    ]


def test_names_carry_a_score_temperature():
    """JetSpec's published form: raw probabilities, trees seven wide."""
    one = parse_methods("jetspec-expand@256/w7/t1,j-chain/t0.5/d3", budget=8)
    assert one[1].options | {"coupled": None} == {
        "drafter": "jetspec",
        "builder": "expand/w7",
        "budget": 256,
        "score_temperature": 1.0,
        "coupled": None,
    }
    assert (one[2].options["score_temperature"], one[2].options["depth"]) == (0.5, 3)


def test_names_carry_the_folder_of_a_policy(tmp_path):
    """It may hold slashes; the method's own settings come before it."""
    folder = tmp_path / "a" / "ltd"
    save_policy(make_static(rows=4), folder)
    name = f"eagle3-dynamic@12/d6/w4/policy={folder}"
    options = parse_methods(name, budget=8)[1].options
    assert (options["policy"], options["builder"]) == (str(folder), "dynamic/w4")
    assert (options["budget"], options["depth"]) == (12, 6)
    assert parse_methods("e-chain/policy=best", budget=8)[1].options["policy"] == "best"
    with pytest.raises(ValueError, match="unknown policy 'nowhere'.* or give the folder"):
        parse_methods("e-chain/policy=nowhere", budget=8)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("j-chain/w3", "method 'j-chain/w3': builder 'chain' has no setting 'width'"),
        ("j-expand+depth", "unknown score 'depth'"),
        ("j-expand/w0", "width is 0: give a whole number of at least 1"),
    ],
)
def test_settings_that_a_builder_has_not(name, message):
    with pytest.raises(ValueError, match=message) as error:
        parse_methods(name, budget=8)
    assert "\n" not in str(error.value)


def test_names_carry_a_policys_rule():
    names = "jetspec-best_first@32/best,e-dynamic/d4/bastion-code,s-chain@8/dspark-threshold:0.5"
    methods = parse_methods(names, budget=9)[1:]
    assert [
        (m.options["budget"], m.options["policy"], m.options.get("depth")) for m in methods
    ] == [
        (32, "best", None),
        (9, "bastion-code", 4),
        (8, "dspark-threshold:0.5", None),
    ]
    with pytest.raises(ValueError, match="unknown setting /worst in 'best_first/worst'"):
        parse_methods("jetspec-best_first/worst", budget=9)


def test_all_is_every_drafter_with_the_builders_that_suit_it():
    names = [
        "block-chain",
        "block-best_first",
        "block-expand",
        "eagle3-chain",
        "eagle3-dynamic",
        "falcon-chain",
        "falcon-static",
    ]
    methods = parse_methods("all", budget=8, spec=SPEC)
    always = ["prompt_lookup-chain", "suffix-chain", "suffix-lattice"]
    assert [method.name for method in methods] == ["ar", *names, *always]
    assert {method.options["budget"] for method in methods[1:]} == {8}
    assert methods[7].options["builder"] == "static"
    again = parse_methods("eagle3-chain,all,block-beam", budget=8, spec=SPEC)
    assert sorted(method.name for method in again) == sorted(["ar", *names, *always, "block-beam"])
    assert [method.name for method in parse_methods("all,x-expand", budget=8)] == [
        "ar",
        "x-expand",
    ], "without a model"
    alone = dataclasses.replace(SPEC, drafters=())
    assert [method.name for method in parse_methods("all", budget=8, spec=alone)] == [
        "ar",
        *always,
    ]


def test_coupling():
    assert [method.name for method in parse_methods("a-expand", budget=8, coupled="both")] == [
        "ar",
        "a-expand",
        "a-expand/uncoupled",
    ]
    assert [
        method.options["coupled"]
        for method in parse_methods("a-expand", budget=8, coupled="off")[1:]
    ] == [False]
    assert len(parse_methods("prompt_lookup-chain", budget=8, coupled="both")) == 2, (
        "it ranks nothing"
    )
    assert len(parse_methods("suffix-lattice", budget=8, coupled="both")) == 3


@pytest.mark.parametrize(
    "name",
    [
        "jetspec",
        "jetspec-bush",
        "-tree",
        "jetspec-expand@",
        "jetspec-expand@x",
        "a-expand+",
        "a-expand+entropy1",
        "a-expand/d",
        "a-expand/x3",
    ],
)
def test_unknown_methods(name):
    with pytest.raises(ValueError, match="unknown (method|score|setting)"):
        parse_methods(name, budget=8)


def test_repeated_method():
    with pytest.raises(ValueError, match="listed twice"):
        parse_methods("a-expand,a-expand", budget=8)
