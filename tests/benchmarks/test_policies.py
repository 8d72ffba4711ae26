"""Policies by three clocks."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from benchmarks.policies import compare_policies as policies
from benchmarks.policies.compare_policies import compare_policies, make_contenders
from benchmarks.policies.policy_tables import render_policies
from jaxspec.bench.measure.decodes import Run
from jaxspec.bench.measure.methods import Method
from jaxspec.costs.round_costs import make_costs
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.learned.c2t import make_c2t
from jaxspec.policies.named import make_named
from jaxspec.policies.rules.replayed import make_replay
from jaxspec.tuner.calibrate.by_steps import _pairs, _separate

GOLDEN = SHIPPED / "dflash"
TIMES = make_costs((1, 4, 12), (0, 100), 0.0, [[3, 3], [4, 4], [6, 8]], plain=(2, 2), step=(1, 2))
BASE = Method("dflash-best_first@12", {"drafter": "dflash", "builder": "best_first", "budget": 12})


def test_parts_of_measured_rounds():
    widths = (1, 4, 12)
    pairs = _pairs(widths, 5)
    rest = dict(zip(widths, (3.0, 4.0, 6.0), strict=True))
    taken = np.array([rest[rows] + 0.5 * steps for steps, rows in pairs])
    step, found, error = _separate(taken, len(widths), 5, pairs)
    assert (step, error) == (
        pytest.approx(0.5),
        pytest.approx(0),
    ) and found.tolist() == pytest.approx([3, 4, 6])
    # Where one step is all, rounds without it tell what it takes.
    pairs = _pairs(widths, 1)
    taken = np.array([0.5 * steps + rest[rows] for steps, rows in pairs])
    step, found, error = _separate(taken, len(widths), 1, pairs)
    assert step == pytest.approx(0.5) and error == pytest.approx(0)
    np.testing.assert_allclose(found, [rest[rows] for rows in widths])
    step, found, _ = _separate(np.array([3.0, 4.0, 6.0, 4.0, 6.0, 6.0]), 3, 0, _pairs(widths, 0))
    assert step == 0 and found.tolist() == [3, 4, 6]


def test_repeats_must_be_some():
    with pytest.raises(ValueError, match="repeats is 0"):
        compare_policies(None, [], [BASE], TIMES, repeats=0)


def test_later_turns_of_conversations_are_asked(monkeypatch):
    asked = []
    answer = SimpleNamespace(text=" answer.")
    monkeypatch.setattr(jaxspec, "decode", lambda params, content, **options: answer)
    monkeypatch.setattr(
        policies, "check_prompts", lambda params, prompts, options: asked.extend(prompts)
    )
    monkeypatch.setattr(policies, "_decode_all", lambda *arguments: ([], {}))
    monkeypatch.setattr(policies, "describe_environment", lambda params: {})
    report = compare_policies(
        None, [LabelledPrompt("a", "Who?", later=("Why?",))], [BASE], TIMES, repeats=1
    )
    assert [(prompt.content, prompt.turn) for prompt in asked] == [
        ("Who?", 0),
        ("Who? answer.\n\nWhy?", 1),
    ]
    assert report["results"] == []


def test_what_slows_a_whole_repeat_is_left_out(monkeypatch):
    def decoded(method: str, repeat: int, seconds: float) -> policies.ContenderDecode:
        run = Run(method, 0, repeat, (5, 6, 7), 2, 4, (1, 1), 0.0, seconds)
        return policies.ContenderDecode(run, run, run, np.zeros(2), np.full(2, 4))

    taken = {"ar": (1.0, 2.0, 4.0), "one": (0.5, 2.0, 2.0)}
    found = [
        decoded(name, repeat, seconds)
        for name, own in taken.items()
        for repeat, seconds in enumerate(own)
    ]
    monkeypatch.setattr(policies, "check_prompts", lambda *arguments: None)
    monkeypatch.setattr(policies, "_decode_all", lambda *arguments: (found, {}))
    monkeypatch.setattr(policies, "describe_environment", lambda params: {})
    methods = [Method(name, {"drafter": "ar"}) for name in taken]
    report = compare_policies(
        None, [LabelledPrompt("a", [1, 2])], methods, TIMES, repeats=3, against="one"
    )
    speed = {
        (r["clock"], r["method"]): r["speedup"] for r in report["results"] if r["domain"] == "a"
    }
    # The medians of what was measured are equal; in two of three repeats of like speed `one` is
    # twice as fast.
    assert speed["whole", "one"] == speed["replayed", "one"] == pytest.approx(2)
    assert speed["modelled", "one"] == pytest.approx(1)
    against = {
        r["method"]: r["against"]
        for r in report["results"]
        if r["clock"] == "whole" and r["domain"] == "a"
    }
    assert against == pytest.approx({"ar": 0.5, "one": 1})
    head = {"device": {"kind": "cpu", "cpus": 2}, "versions": {"jax": "0"}, "dtype": "float32"}
    shown = render_policies(
        report
        | head
        | {
            "temperatures": [
                {"temperature": 0, "times": {"error": 0}, "results": report["results"]}
            ]
        }
    )
    assert "/ one" in shown and "0.500" in shown
    with pytest.raises(ValueError, match="no contender is called 'two': choose one of ar, one"):
        compare_policies(None, [LabelledPrompt("a", [1, 2])], methods, TIMES, against="two")


def test_all_are_compared_with_the_same_contender():
    methods = [Method(name, {}) for name in ("ar", *"abcdefghijklmno")]
    names = [[one.name for one in group] for group in policies._groups(methods, "n")]
    assert names == [["ar", "n", *"abcdefghijkl"], ["ar", "n", "m", "o"]]
    assert [[one.name for one in group] for group in policies._groups(methods[:3], "ar")] == [
        ["ar", "a", "b"]
    ]


@pytest.mark.slow
def test_contenders_by_each_clock():
    params = jaxspec.load(
        GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"}, dtype="float32"
    )
    options = {"max_new_tokens": 12}
    chosen = make_contenders(params, BASE, ["none", "four=static:x4"], options)
    assert [one.name for one in chosen] == ["ar", "none", "four"]
    prompts = [LabelledPrompt("a", [1, 2, 3]), LabelledPrompt("b", [4, 5])]
    report = compare_policies(
        params,
        prompts,
        chosen,
        dataclasses.replace(TIMES, about={"error": 0.1}),
        repeats=2,
        options=options,
    )
    by = {(r["clock"], r["method"], r["domain"]): r for r in report["results"]}
    assert all(record["identical_to_ar"] for record in report["results"])
    assert (
        set(report["compile_seconds"]) == {"ar", "none", "four"}
        and min(report["compile_seconds"].values()) > 0
    )
    four = by["whole", "four", "all"]
    assert (
        four["rows"] <= 4 < by["whole", "none", "all"]["rows"]
        and four["steps"] == 0
        and four["own_share"] is not None
    )
    # Eleven tokens after the prefill's, each a round of plain decoding of two seconds.
    assert by["modelled", "ar", "a"]["tokens_per_second"] == pytest.approx(0.5)
    text = render_policies(
        report
        | {
            "temperatures": [
                {"temperature": 0.0, "times": report["times"], "results": report["results"]}
            ]
        }
    )
    assert "off by 10 % at most" in text and "four" in text
    with pytest.raises(ValueError, match="two contenders are called 'x'"):
        make_contenders(params, BASE, ["x=none", "x=static:x4"], options)


def test_names():
    assert (
        make_named("static:3x", None).config.rows is False
        and make_named("static:3x8", None).controls.rows == 8
    )
    assert make_named("gammatune-ltd", None).config.start == 8
    with pytest.raises(
        ValueError, match="unknown policy 'nothing': choose one of .*best, .*ddd-paper"
    ):
        make_named("nothing", None)
    with pytest.raises(ValueError, match="'static:x' is no policy: write static:STEPSxROWS"):
        make_named("static:x", None)


def test_what_counts_do_not_tell_is_not_repeated():
    layers = [
        {"kernel": np.zeros((3, 4)), "bias": np.zeros(4)},
        {"kernel": np.zeros((4, 1)), "bias": np.zeros(1)},
    ]
    with pytest.raises(ValueError, match="picks nodes of each level"):
        make_replay(make_c2t(layers), None, 64)
