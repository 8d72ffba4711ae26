"""Sweeps: the figures on made-up runs, and the whole of it on golden weights."""

import json
from types import SimpleNamespace

import matplotlib
import numpy as np
import pytest
import scipy.stats
from golden_data import SHIPPED
from pair_toys import SIZES

import jaxspec
from benchmarks import __main__ as cli
from benchmarks.sweep import cost_kinds
from benchmarks.sweep import sweep_budgets as module
from benchmarks.sweep.cost_kinds import find_kind, make_cost_kinds
from benchmarks.sweep.family import Rule, default_budgets, make_family, parse_rule
from benchmarks.sweep.figures import (
    average_domains,
    compare_hindsight,
    compare_pairs,
    reduce_runs,
)
from benchmarks.sweep.predictions import fit_surrogate, measure_prediction_errors
from benchmarks.sweep.rounds import estimate_variance
from benchmarks.sweep.sweep_plot import parse_budget, plot_sweep
from benchmarks.sweep.sweep_summary import summarise_sweep
from benchmarks.sweep.sweep_tables import render_sweep
from jaxspec.bench.measure.decodes import Run
from jaxspec.core.config import TargetConfig
from jaxspec.costs.roofline import PeakRates
from jaxspec.costs.round_costs import make_costs
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.bastion.controller_state import init_controller

GOLDEN = SHIPPED / "dflash"
PROMPTS = [LabelledPrompt(domain, [1]) for domain in ("math", "math", "code", "code")]
FAMILY = make_family("x-best_first", (1, 2, 4), 4, ("best",), beam=True)
# Seconds of twelve tokens on each prompt: 2 rows are best for mathematics, 4 for code.
SECONDS = {
    "ar": (12.0, 12.0, 12.0, 12.0),
    "x-best_first@2": (4.0, 6.0, 12.0, 12.0),
    "x-best_first@4": (6.0, 8.0, 6.0, 4.0),
    "x-best_first@4/best": (4.0, 5.0, 6.0, 5.0),
}
ROUNDS = {
    "ar": 12,
    "x-best_first@2": 8,
    "x-best_first@4": 4,
    "x-best_first@4/best": 6,
    "x-beam@2": 8,
    "x-beam@4": 6,
}


def run(method, prompt, seconds, repeat=0, tokens=range(13)):
    return Run(
        method, prompt, repeat, tuple(tokens), ROUNDS[method], 0, (0, ROUNDS[method]), 1.0, seconds
    )


RUNS = [
    run(m, i, s * scale, r)
    for m, of in SECONDS.items()
    for i, s in enumerate(of)
    for r, scale in enumerate((1, 9, 0.5))
]


def test_families():
    assert default_budgets(32) == (1, 2, 4, 8, 12, 16, 24, 32) and default_budgets(256)[-3:] == (
        128,
        192,
        256,
    )
    assert default_budgets(7) == (1, 2, 4, 7) and default_budgets(1) == (1,)
    assert default_budgets(1024)[-5:] == (256, 384, 512, 768, 1024)
    family = make_family(
        "my-x-best_first+entropy/b8", (8, 1, 2), 16, ("best", "bastion-code"), beam=True
    )
    assert family.drafter == "my-x"
    assert [method.name for method in family.fixed] == [
        "ar",
        "my-x-best_first+entropy@2/b8",
        "my-x-best_first+entropy@8/b8",
    ]
    assert [method.options.get("budget") for method in family.fixed] == [None, 2, 8]
    assert [method.name for method in family.policies] == [
        "my-x-best_first+entropy@16/b8/best",
        "my-x-best_first+entropy@16/b8/bastion-code",
    ]
    assert [(m.options["budget"], m.options["policy"]) for m in family.policies] == [
        (16, "best"),
        (16, "bastion-code"),
    ]
    assert [(m.name, m.options["builder"], m.options["budget"]) for m in family.beams] == [
        ("my-x-beam@2/b8", "beam", 2),
        ("my-x-beam@8/b8", "beam", 8),
    ]
    assert make_family("x-expand", (4,), 4, ("best+ema",)).policies[0].name == "x-expand@4/best+ema"
    assert parse_budget("ar") == 1 and parse_budget("my-x-best_first+entropy@8/b8") == 8


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("ar", (1,), 8), "cannot sweep the budgets of 'ar'"),
        (("a-expand,b-expand", (1,), 8), "give one method"),
        (("a-expand@8", (1,), 8), "give one method"),
        (("a-expand/best", (1,), 8), "give one method"),
        (("a-static/paths=[[0]]", (1,), 8), "give one method"),
        (("a-expand", (0, 2), 8), r"budgets are \[0, 2\] and 8"),
        (("a-expand", (1,), 8, ("worst",)), "unknown rule 'worst'"),
        (("a-expand", (1,), 8, ("best+fitted",)), "unknown rule 'best.fitted'"),
        (("a-expand", (1,), 8, ("best++ema",)), "unknown rule"),
    ],
)
def test_what_cannot_be_swept(arguments, message):
    with pytest.raises(ValueError, match=message):
        make_family(*arguments)


def test_hindsight_and_the_mean_over_domains():
    t = reduce_runs(RUNS, PROMPTS)
    assert t.seconds.tolist() == list(map(list, SECONDS.values())), "the median repeat"
    math, code = 24 / 9, 24 / 11
    mean = {record["method"]: record for record in average_domains(t)}
    assert mean["x-best_first@4/best"]["speedup"] == pytest.approx((math + code) / 2)
    low, high = mean["x-best_first@4/best"]["speedup_ci"]
    assert low == pytest.approx((12 / 5 + 2) / 2) and high == pytest.approx((3 + 12 / 5) / 2)
    found = {
        record["domain"]: record
        for record in compare_hindsight(
            t, "x-best_first@4/best", ["ar", "x-best_first@2", "x-best_first@4"]
        )
    }
    assert (found["math"]["best"], found["code"]["best"]) == ("x-best_first@2", "x-best_first@4")
    assert found["math"]["ratio"] == pytest.approx(10 / 9) and found["code"][
        "ratio"
    ] == pytest.approx(10 / 11)
    assert found["math"]["ratio_ci"] == pytest.approx([1, 6 / 5]) and found["code"][
        "ratio_ci"
    ] == pytest.approx([4 / 5, 1])
    assert found["mean"]["ratio"] == pytest.approx((math + code) / (24 / 10 + 24 / 10))
    single = found["single"]
    assert single["best"] == "x-best_first@4" and single["ratio"] == pytest.approx(
        (math + code) / (24 / 14 + 24 / 10)
    )
    assert set(single["margins"]) == {"ar", "x-best_first@2", "x-best_first@4"}
    assert single["margins"]["x-best_first@2"][0] == pytest.approx((math + code) / (24 / 10 + 1))
    # With a prompt a domain nothing can be resampled.
    once = [run(m, i, of[2 * i]) for m, of in SECONDS.items() for i in (0, 1)]
    alone = reduce_runs(once, PROMPTS[1:3])
    assert average_domains(alone)[1]["speedup_ci"] is None
    assert compare_hindsight(alone, "x-best_first@4/best", ["ar"])[-1]["margins"]["ar"][1:] == [
        None,
        None,
    ]


def test_resamples_choose_their_own_best_budget():
    """The two budgets are equal on average, each best on another prompt: hindsight gains in the
    resamples that miss one.
    """
    seconds = {
        "ar": (12, 12),
        "x-best_first@2": (4, 8),
        "x-best_first@4": (8, 4),
        "x-best_first@4/best": (6, 6),
    }
    runs = [run(m, i, s) for m, of in seconds.items() for i, s in enumerate(of)]
    record = compare_hindsight(
        reduce_runs(runs, PROMPTS[:2]),
        "x-best_first@4/best",
        ["ar", "x-best_first@2", "x-best_first@4"],
    )[0]
    assert record["ratio"] == 1 and record["ratio_ci"] == pytest.approx([4 / 6, 1])


def test_what_slows_a_whole_repeat_is_left_out():
    """The repeats of `RUNS` take 1, 9 and 0.5 times as long, whatever the method."""
    found = summarise_sweep(RUNS, [], [], PROMPTS, FAMILY._replace(beams=()))
    assert {one["method"] for one in found["results"]} == set(SECONDS)
    assert all(one["repeat_spread"] == pytest.approx(0) for one in found["results"])


def test_predictions_against_measurements():
    decodes = [
        {"method": "p", "prompt": i, "measured": 2.0, "predicted": 2.0 * (1 + error), "rounds": 4}
        for i, errors in enumerate([(0.1, -0.2), (0.1, 0.1), (-0.5, -0.4), (0.3, 0.0)])
        for error in errors
    ]
    math, code, both = measure_prediction_errors(decodes, [prompt.domain for prompt in PROMPTS])
    assert [record["domain"] for record in (math, code, both)] == ["math", "code", "all"]
    assert (
        math["error"] == pytest.approx(0.1)
        and math["bias"] == pytest.approx(0.1)
        and math["decodes"] == 4
    )
    assert code["error"] == pytest.approx(0.35) and code["error_ci"] == pytest.approx([0.15, 0.45])
    assert (
        both["error"] == pytest.approx(0.15)
        and both["measured_ms"] == 500
        and both["predicted_ms"] == pytest.approx(468.75)
    )


def test_surrogate_against_reality():
    rng = np.random.default_rng(0)
    prompt, raw = np.repeat(range(4), 20), np.round(rng.uniform(1, 5, 80), 1)
    committed = 1 + rng.poisson(raw - 1)
    rounds = [
        {
            "method": "p",
            "prompt": int(p),
            "rows": 8,
            "raw": float(x),
            "corrected": 2 * float(x) - 1,
            "committed": int(y),
        }
        | {"raw_variance": float(x) - 1, "corrected_variance": 0.0}
        for p, x, y in zip(prompt, raw, committed, strict=True)
    ]
    plain = {"method": "p", "prompt": 0, "rows": 1, "raw": 1.0, "corrected": 1.0, "committed": 1}
    records = fit_surrogate([*rounds, plain, plain], [one.domain for one in PROMPTS])
    assert [(r["domain"], r["estimate"], r["rounds"]) for r in records[::2]] == [
        ("math", "raw", 40),
        ("code", "raw", 40),
        ("all", "raw", 80),
    ]
    whole = records[-2]
    assert whole["pearson"] == pytest.approx(scipy.stats.pearsonr(raw, committed)[0])
    assert whole["spearman"] == pytest.approx(scipy.stats.spearmanr(raw, committed)[0])
    assert whole["pearson_ci"][0] < whole["pearson"] < whole["pearson_ci"][1]
    assert (
        records[-1]["pearson"] == pytest.approx(whole["pearson"])
        and records[-1]["expected"] > whole["expected"]
    )
    assert whole["committed"] == pytest.approx(committed.mean())
    # The tokens are drawn with just this mean and variance.
    assert (
        whole["attainable"] == pytest.approx(whole["pearson"], abs=0.1)
        and records[-1]["attainable"] == 1
    )
    means = [[values[prompt == i].mean() for i in range(4)] for values in (raw, committed)]
    assert (
        whole["pearson_of_prompts"] == pytest.approx(np.corrcoef(*means)[0, 1])
        and records[0]["pearson_of_prompts"] is None
    )
    flat = fit_surrogate(
        [one | {"committed": 2} for one in rounds], [one.domain for one in PROMPTS]
    )
    assert flat[0]["pearson"] is None and flat[0]["pearson_ci"] is None


def test_variance_of_what_a_tree_commits():
    """Against all outcomes of a tree: a root, two children, and a child of the first."""
    probability, depth = np.array([1.0, 0.5, 0.3, 0.4]), np.array([0, 1, 1, 2])
    outcomes = {1: 0.2, 2: 0.1 + 0.3, 3: 0.4}
    mean = sum(tokens * p for tokens, p in outcomes.items())
    assert probability.sum() == pytest.approx(mean)
    assert estimate_variance(probability, depth) == pytest.approx(
        sum((tokens - mean) ** 2 * p for tokens, p in outcomes.items())
    )


def test_rules_name_their_costs_and_their_correction():
    assert parse_rule("best") == Rule("best", "", False)
    assert parse_rule("bastion-paper+ema") == Rule("bastion-paper", "", True)
    assert parse_rule("bastion-paper+bare+ema") == Rule("bastion-paper", "bare", True)
    assert parse_rule("bastion-code+fit") == Rule("bastion-code", "fit", False)


@pytest.fixture
def timings(monkeypatch):
    """A model whose rounds are measured without running; the widths of each measurement."""
    params = SimpleNamespace(
        spec=SimpleNamespace(target=TargetConfig(**SIZES | {"num_layers": 2}, vocab_size=32)),
        dtype=np.dtype("float32"),
    )
    asked = []

    def calibrate(params, drafter, widths=None, **options):
        widths = tuple(widths or (1, 2, 4))
        asked.append(widths)
        return make_costs(widths, (64, 128), 1e-3, [[2e-3 + 1e-4 * n] * 2 for n in widths])

    monkeypatch.setattr(cost_kinds, "calibrate", calibrate)
    return params, asked


def test_kinds_of_costs_come_from_one_measurement(timings, monkeypatch):
    params, asked = timings
    device = PeakRates(1e9, 1e9)
    found = make_cost_kinds(params, "x", {"measured", "fit", "bare"}, device=device, budget=4)
    assert len(asked) == 1 and [find_kind(found[kind]) for kind in ("measured", "fit")] == [
        "measured",
        "fit",
    ]
    assert found["measured"].widths == (1, 2, 4) and found["fit"].widths == (1, 2, 3, 4)
    # The bare roofline has the measured drafting.
    assert set(found["bare"].draft.tolist()) == {1e-3} and found["bare"].compiled == (1, 2, 4)
    # Widths that are asked for do not drop the fit that is kept.
    monkeypatch.setattr(cost_kinds, "measured", lambda *_, **__: found["fit"])
    again = make_cost_kinds(params, "x", {""}, widths=(1, 3, 4), device=device, budget=4)[""]
    assert find_kind(again) == "fit" and again.compiled == (1, 3, 4) and asked[1:] == [(1, 3, 4)]
    assert make_cost_kinds(params, "x", {""}, budget=4)[""] is found["fit"] and len(asked) == 2


def test_best_first_over_beam():
    beams = [run(m, i, s) for m, s in (("x-beam@2", 8.5), ("x-beam@4", 9)) for i in range(4)]
    pairs = [("x-best_first@2", "x-beam@2"), ("x-best_first@4", "x-beam@4")]
    records = compare_pairs(reduce_runs([*RUNS, *beams], PROMPTS), pairs)
    assert [(r["domain"], r["length"], r["other_length"], r["ratio"]) for r in records[-2:]] == [
        ("all", 1.5, 1.5, 1.0),
        ("all", 3.0, 2.0, 1.5),
    ]
    assert len(records) == 6 and records[1]["ratio_ci"] == [1.5, 1.5]
    # Four prompts of twelve tokens: 34 seconds against 34, and 24 against 36.
    assert [(r["speed"], r["speed_ratio"]) for r in records[-2:]] == [
        (pytest.approx(48 / 34), pytest.approx(1.0)),
        (2.0, pytest.approx(1.5)),
    ]
    # On mathematics alone 10 seconds against 17.
    assert records[0]["domain"] == "math" and records[0]["speed_ratio"] == pytest.approx(1.7)
    found = summarise_sweep([*RUNS, *beams], [], [], PROMPTS, FAMILY)
    assert {one["method"] for one in found["beams"]} == {"x-beam@2", "x-beam@4"}
    assert {one["method"] for one in found["results"]} == set(SECONDS)
    assert found["best_first_over_beam"][-1]["speed_ratio"] == pytest.approx(1.5, rel=0.2)


def test_a_sweep(monkeypatch, tmp_path):
    """All of it but the decodes: who decodes what, what is counted of each decode, the report and
    the picture.
    """
    calls, asked, rounds = [], [], {"ar": 12, 2: 8, 4: 4}

    def decode(params, prompt, **options):
        calls.append(options)
        given = options.get("speculation") or jaxspec.Speculation()
        builder = given.builder and str(given.builder)
        asked.append((given.policy is not None, builder, options.get("budget")))
        policy, count = given.policy, rounds[options.get("budget", "ar")]
        if policy is not None:
            state = policy.state or init_controller(3, 4)
            sizes = state.sizes + count * (np.arange(5) == 4)
            policy = policy.replace(
                state=state.replace(
                    rounds=state.rounds + count, predicted=state.predicted + 3, sizes=sizes
                )
            )
        stats = SimpleNamespace(
            rounds=count, drafted=0, accept_hist=(0, count), prefill_seconds=1.0, decode_seconds=2.0
        )
        per_round = SimpleNamespace(tokens=np.array([2]))
        return SimpleNamespace(
            tokens=list(range(13)), stats=stats, policy=policy, per_round=per_round
        )

    # A thread of another test may compile meanwhile, and calls that compile are repeated.
    monkeypatch.setattr("jaxspec.core.runtime.clock.compilations", lambda: 0)
    traced = {
        "method": "x-best_first@4/best",
        "rows": 4,
        "raw": 2.0,
        "corrected": 3.0,
        "committed": 3,
    }
    traced |= {"raw_variance": 1.0, "corrected_variance": 1.0}
    monkeypatch.setattr(jaxspec, "decode", decode)
    costs = make_costs((1, 4), (64,), (1,), [[1], [2]])
    monkeypatch.setattr(module, "make_costs_of", lambda *_, **__: {"": costs})
    monkeypatch.setattr(
        module, "trace_rounds", lambda *_: [traced | {"prompt": i} for i in range(4)]
    )
    monkeypatch.setattr(
        module,
        "describe_environment",
        lambda params: {"device": {"kind": "cpu", "cpus": 2}, "versions": {"jax": "0"}},
    )
    monkeypatch.setattr(module, "plan_rounds", lambda *_: SimpleNamespace(longest=5))
    report = module.sweep_budgets(
        None, PROMPTS, FAMILY, temperatures=(0.0, 1.0), repeats=2, options={"seed": 5}
    ) | {"dtype": "float32"}
    report["settings"] = {"scramble": 3}
    assert set(asked) == {
        (False, None, None),
        (False, "best_first", 2),
        (False, "best_first", 4),
        (True, "best_first", 4),
        (False, "beam", 2),
        (False, "beam", 4),
    }
    assert {c["seed"] for c in calls} == {5} and [
        c["temperature"] for c in calls[:: len(calls) // 2]
    ] == [0.0, 1.0]
    one = report["temperatures"][1]
    assert [(d["predicted"], d["rounds"], d["sizes"]) for d in one["decodes"]] == [
        (3.0, 4, [0, 0, 0, 0, 4])
    ] * 8
    assert one["sizes"][-1] == {
        "method": "x-best_first@4/best",
        "domain": "all",
        "sizes": [0, 0, 0, 0, 32],
    }
    assert one["tables"]["kept"]["widths"] == [1, 4] and json.dumps(report)
    text = render_sweep(report)
    # Drafting of 1, four drafted tokens, verification of 1 and 2: c is 1 / 4 and 1 / 8.
    costs = text.partition("c = T_draft")[2].splitlines()
    assert [costs[2].split(), costs[3].split()] == [["1", "4", "0.250"], ["4", "4", "0.125"]]
    for part in (
        "scrambled (seed 3)",
        "=== temperature 1",
        "4: 100%",
        "best fixed budget of each domain, ratio >= 0.97",
        "0.500",
    ):
        assert part in text
    matplotlib.use("agg")
    plot_sweep(report, tmp_path / "sweep.png")
    assert (tmp_path / "sweep.png").stat().st_size > 10_000


def test_a_text_that_differs_is_reported():
    runs = [*RUNS[:-1], run("x-best_first@4/best", 3, 1.0, 2, tokens=[*range(12), 99])]
    one = {"temperature": 0.0} | summarise_sweep(
        runs, [], [], PROMPTS, FAMILY._replace(policies=(), beams=())
    )
    report = {
        "device": {"kind": "cpu", "cpus": 2},
        "prompts": [0] * 4,
        "repeats": 3,
        "dtype": "f",
        "versions": {"jax": "0"},
    }
    text = render_sweep(report | {"temperatures": [one]})
    assert "NO (1)" in text and text.splitlines()[-1].split()[-2:] == ["x-best_first@4/best", "no"]


@pytest.mark.slow
def test_sweep_of_golden_weights(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    lines = [
        {"domain": d, "prompt": ids}
        for d, ids in (("a", [117, 142, 122, 64, 240, 19]), ("b", [40, 41, 42, 43]))
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    arguments = [
        GOLDEN / "target",
        "--drafter",
        f"d={GOLDEN / 'drafter'}",
        "--prompts",
        prompts,
        "--json",
        out,
    ]
    arguments += [
        "--budget",
        6,
        "--budgets",
        "1,6",
        "--widths",
        "1,3,6",
        "--beam",
        "--temperature",
        "1",
        "--repeats",
        2,
    ]
    names = (
        "--method d-best_first --policies best+ema,bastion-paper+fit+ema --device h100 "
        "--max-new-tokens 24 --scramble 1"
    )
    assert cli.main(list(map(str, ["sweep", *arguments, *names.split()]))) == 0
    report, printed = json.loads(out.read_text()), capsys.readouterr().out
    for one in report["temperatures"]:
        assert all(record["identical_to_ar"] for record in one["results"] + one["beams"])
        assert one["tables"]["kept"]["widths"] == one["tables"]["fit"]["widths"] == [1, 3, 6]
        assert one["tables"]["fit"]["about"]["root_mean_square_errors"]["fit"] > 0
        for name in ("d-best_first@6/best+ema", "d-best_first@6/bastion-paper+fit+ema"):
            decodes = [decode for decode in one["decodes"] if decode["method"] == name]
            assert len(decodes) == 4 and all(
                sum(d["sizes"]) == d["rounds"] and d["predicted"] > 0 for d in decodes
            )
            rounds = [r for r in one["rounds"] if r["method"] == name]
            assert rounds and all(
                1 <= r["raw"] <= r["rows"] and r["committed"] >= 1 for r in rounds
            )
            assert all(r["corrected"] == pytest.approx(r["raw"], abs=1e-3) for r in rounds[:5]), (
                "nothing is known at first"
            )
    assert "NO" not in printed and "scrambled (seed 1)" in printed
