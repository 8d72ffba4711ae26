"""BASTION's figures on made-up rounds and times, by hand; and all of them on golden weights."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import scipy.stats
from golden_data import SHIPPED

import jaxspec
from benchmarks import __main__ as cli
from benchmarks.bastion import compare, cost_model, surrogate
from benchmarks.bastion.bastion_command import FIGURES
from benchmarks.sweep.family import parse_rule
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.bench.measure.decodes import Run
from jaxspec.call.output import DraftTree, TracedRound
from jaxspec.core.config import TargetConfig
from jaxspec.costs.files import decode_costs
from jaxspec.costs.roofline import DEVICES, PeakRates, paper_bytes, paper_flops, roofline_costs
from jaxspec.costs.roofline_fit import RooflineFit
from jaxspec.costs.round_costs import make_costs
from jaxspec.io.text.prompt_files import LabelledPrompt

GOLDEN = SHIPPED / "dflash"
PROMPTS = [LabelledPrompt(domain, [1]) for domain in ("math", "math", "code", "code")]
TARGET = TargetConfig(
    hidden_size=16,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    ffn_size=24,
    vocab_size=32,
)


def make_round(probabilities, accepted):
    """A chain with these conditional probabilities, of which the first tokens are accepted."""
    rows = np.arange(len(probabilities) + 1)
    logprob = np.log(np.cumprod([1.0, *probabilities]))
    return TracedRound(DraftTree(rows, rows - 1, rows, logprob), tuple(range(accepted + 1)), 0)


def test_the_surrogate_is_a_sum_over_the_whole_chain():
    """0.5 + 0.25 + 0.2, whatever a policy would have verified, and no root."""
    found = surrogate.describe_chain(make_round([0.5, 0.5, 0.8], 2))
    assert found["raw"] == pytest.approx(1 + 0.95) and found["committed"] == 3
    # Commits 1, 2, 3 or 4 tokens with probabilities 0.5, 0.25, 0.05 and 0.2.
    mean = 0.5 + 0.5 + 0.15 + 0.8
    variance = 0.5 + 4 * 0.25 + 9 * 0.05 + 16 * 0.2 - mean**2
    assert found["raw_variance"] == pytest.approx(variance)


def test_the_surrogate_is_correlated_with_accepted_tokens(monkeypatch):
    rng, given, made = np.random.default_rng(0), [], []

    def decode(params, prompt, **options):
        given.append(options)
        rounds = [
            make_round(p := rng.uniform(0.2, 1, 4), rng.binomial(4, p.mean())) for _ in "abcd"
        ]
        made.extend(rounds[:-1])  # the limit cuts the last one
        return SimpleNamespace(rounds=rounds)

    monkeypatch.setattr(jaxspec, "decode", decode)
    monkeypatch.setattr(surrogate, "describe_environment", lambda params: {})
    monkeypatch.setattr(surrogate, "plan_rounds", lambda *_: SimpleNamespace(longest=5))
    report = surrogate.measure_surrogate(None, PROMPTS, options={"seed": 3})
    chosen = given[0]["speculation"]
    assert str(chosen.builder) == "chain" and chosen.score_temperature == 1.0
    assert given[0]["trace"] and given[0]["seed"] == 3 and report["depth"] == 4
    x = [float(np.exp(one.tree.logprob)[1:].sum()) for one in made]
    y = [len(one.path) - 1 for one in made]
    assert [one["accepted"] for one in report["rounds"]] == y and len(x) == 12
    whole = next(one for one in report["surrogate"] if one["domain"] == "all")
    assert whole["pearson"] == pytest.approx(scipy.stats.pearsonr(x, y)[0])
    assert whole["spearman"] == pytest.approx(scipy.stats.spearmanr(x, y)[0])
    assert {one["estimate"] for one in report["surrogate"]} == {"raw"}


def test_saturation():
    speeds = {"ar": 1.0, "x-best_first@16": 1.5, "x-best_first@64": 2.0, "x-best_first@256": 1.8}
    one = {
        "averages": [{"method": m, "speedup": s} for m, s in speeds.items()],
        "results": [
            {"method": m, "domain": d, "mean_acceptance_length": s + (d == "code")}
            for m, s in speeds.items()
            for d in ("code", "all")
        ],
    }
    assert compare.find_saturation(one) == {
        "rows": [1, 16, 64, 256],
        "speedup": [1.0, 1.5, 2.0, 1.8],
        "length": [1.0, 1.5, 2.0, 1.8],
        "peak": 64,
        "beyond": pytest.approx(0.9),
    }
    one["averages"].pop()
    assert compare.find_saturation(one)["beyond"] is None


@pytest.fixture
def swept(monkeypatch):
    """The families that are swept, and what with."""
    calls = []

    def sweep(params, prompts, family, **settings):
        calls.append((family, settings))
        return {"temperatures": []}

    monkeypatch.setattr(compare, "sweep_budgets", sweep)
    return calls


def test_the_papers_budgets_beams_and_corrections(swept):
    compare.compare_beams(None, PROMPTS, repeats=2)
    family, settings = swept[0]
    assert [one.name for one in family.beams] == ["dflash-beam@17", "dflash-beam@61"]
    assert settings == {"repeats": 2}
    compare.measure_saturation(None, PROMPTS)
    assert [one.options.get("budget") for one in swept[1][0].fixed][-1] == 1024
    report = compare.compare_corrections(None, PROMPTS, budget=32)
    rules = [parse_rule(one.options["policy"]) for one in swept[2][0].policies]
    assert [rule[1:] for rule in rules] == [
        ("fit", False),
        ("bare", True),
        ("fit", True),
        ("bare", False),
        ("measured", False),
    ]
    assert {rule.name for rule in rules} == {"bastion-paper"}
    assert report["names"]["dflash-best_first@32/bastion-paper+bare+ema"] == "EMA"


def test_bastion_and_published_methods_in_one_table(monkeypatch):
    """Sixteen tokens a prompt: BASTION in 2 s, DFlash's chain in 4, EAGLE-3 in 8."""
    seconds = {"ar": 16.0, "dflash-chain@16": 4.0, "eagle3-dynamic@60/d7/w10": 8.0}
    seen = []

    def time_decodes(params, prompts, methods, repeats, options, progress):
        seen.extend(methods)
        runs = [
            Run(m.name, i, 0, tuple(range(17)), 8, 0, (0, 8), 1.0, seconds.get(m.name, 2.0))
            for m in methods
            for i in range(len(prompts))
        ]
        return runs, {}

    table = make_costs((1, 64), (64,), 0.1, [[1.0], [2.0]])
    kinds = {"fit": table, "measured": table}
    monkeypatch.setattr(compare, "make_costs_of", lambda *_, **__: kinds)
    monkeypatch.setattr(compare, "time_decodes", time_decodes)
    monkeypatch.setattr(compare, "describe_environment", lambda params: {})
    params = SimpleNamespace(spec=None)
    report = compare.compare_published(params, PROMPTS, budget=64)
    controllers = [m for m in seen if m.options.get("policy") is not None]
    assert [m.options["policy"].config.rule for m in controllers] == [
        "bastion-paper",
        "bastion-first-decrease",
        "bastion-code",
        "best",
    ]
    assert {m.options["drafter"] for m in controllers} == {"dflash"}
    pairs = {(r["method"].partition("@")[0], r["other"]): r for r in report["pairs"][-6:]}
    assert pairs["dflash-best_first", "dflash-chain@16"]["speed_ratio"] == pytest.approx(2)
    assert pairs["dflash-best_first", "eagle3-dynamic@60/d7/w10"]["speed_ratio"] == pytest.approx(4)
    assert pairs["dflash-chain", "eagle3-dynamic@60/d7/w10"]["speed_ratio"] == pytest.approx(2)
    speeds = {r["method"]: r["speedup"] for r in report["averages"]}
    assert speeds["dflash-best_first@64/bastion-paper+fit"] == pytest.approx(8)
    assert json.dumps(report)


def test_calibration_removes_the_error_of_the_bare_roofline(monkeypatch):
    device, fit = PeakRates(1e9, 1e9), RooflineFit(2.0, 1e-4, 2.0, 1e-4)
    widths, contexts = (1, 2, 8), (64, 256)
    exact = roofline_costs(TARGET, device, widths, contexts, itemsize=4, fit=fit)
    table = make_costs(widths, contexts, 1e-3, exact.verify[0][[0, 1, 7]])
    monkeypatch.setattr(cost_model, "calibrate", lambda *_, **__: table)
    monkeypatch.setattr(cost_model, "describe_environment", lambda params: {})
    params = SimpleNamespace(spec=SimpleNamespace(target=TARGET), dtype=np.dtype("float32"))
    report = cost_model.measure_calibration(params, device=device, budget=8)
    assert report["cut"] > 0.99 and report["underestimated"] == 1.0
    assert report["bare_over_measured"] < 0.5
    assert report["errors"]["fit"] < report["errors"]["ema"] < report["errors"]["bare"]
    assert decode_costs(json.loads(json.dumps(report["costs"])), "x").compiled == widths


def test_peaks_by_the_formula():
    """Three rows: 1, 1.5 and 1.75 tokens, on a GPU that is slow enough to count them."""
    worth = [1.0, 1.5, 1.75]
    found = cost_model.find_peaks(worth, models=("qwen3-8b",), contexts=(512,), draft_share=0.5)
    assert [one["device"] for one in found] == list(DEVICES)
    target, device = ARCHITECTURES["qwen3-8b"], DEVICES["a100"]
    times = [
        max(
            paper_flops(target, n, 512) / device.flops,
            paper_bytes(target, n, 512) / device.bandwidth,
        )
        for n in (1, 2, 3)
    ]
    rates = [w / (0.5 * times[0] + t) for w, t in zip(worth, times, strict=True)]
    a100 = next(one for one in found if one["device"] == "a100")
    assert a100["rows"] == 3 and a100["speedup"] == pytest.approx(max(rates) * times[0])
    # With no end of likely tokens, the fastest budget is near the ridge: later on an H100.
    curve = np.cumsum(0.9 ** (np.arange(600) / 40))
    found = cost_model.find_peaks(curve, models=("qwen3-8b",), contexts=(300,))
    rows = {one["device"]: one["rows"] for one in found}
    assert 1 < rows["a100"] < rows["h100"]


def test_worth_is_a_mean_over_rounds(monkeypatch):
    rounds = [make_round([0.5, 0.5], 1), make_round([0.9], 0)]
    monkeypatch.setattr(jaxspec, "decode", lambda *_, **__: SimpleNamespace(rounds=rounds))
    method = {"drafter": "x", "builder": "best_first", "budget": 4}
    worth = cost_model.measure_worth(None, PROMPTS[:1], method=method)
    np.testing.assert_allclose(worth, [1, 1.7, (1.75 + 1.9) / 2, (1.75 + 1.9) / 2])


@pytest.mark.slow
@pytest.mark.parametrize("figure", FIGURES)
def test_figures_of_golden_weights(figure, capsys, monkeypatch, tmp_path):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    prompts, out = tmp_path / "prompts.jsonl", tmp_path / "out.json"
    lines = [
        {"domain": d, "prompt": ids}
        for d, ids in (("a", [117, 142, 122, 64, 240, 19]), ("b", [40, 41, 42, 43]))
    ]
    prompts.write_text("".join(json.dumps(line) + "\n" for line in lines))
    given = [figure, GOLDEN / "target", "--drafter", f"dflash={GOLDEN / 'drafter'}"]
    given += ["--prompts", prompts, "--json", out, "--max-new-tokens", 16, "--repeats", 1]
    given += ["--budget", 6, "--budgets", "2,6", "--device", "h100"]
    given += ["--published", "dflash-chain@4,dflash-beam@6"]
    assert cli.main(list(map(str, ["bastion", *given]))) == 0, capsys.readouterr().err
    assert json.loads(out.read_text())["settings"]["figure"] == figure
    assert len(capsys.readouterr().out.splitlines()) > 1
