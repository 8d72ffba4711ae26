"""Costs of the roofline from the command line: fitted or bare, kept where policies find them."""

import json
from pathlib import Path

import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.cli import main as cli
from jaxspec.costs.files import load_costs
from jaxspec.costs.roofline import DEVICES, PeakRates, roofline_costs
from jaxspec.costs.roofline_fit import RooflineFit
from jaxspec.costs.round_costs import make_costs
from jaxspec.tuner.calibrate import by_roofline as calibrate_roofline
from jaxspec.tuner.calibrate import ceilings
from jaxspec.tuner.calibrate.by_roofline import fit_table, make_bare_table, measure_peaks
from jaxspec.tuner.calibrate.by_rows import policy_for, table_path, timed

GOLDEN = SHIPPED / "dflash"
# Slow enough for a tiny model that its operations and its bytes both take some time.
SLOW = PeakRates(2e9, 1e9)
WIDTHS, CONTEXTS = (1, 2, 4, 8), (32, 64)
FIT = RooflineFit(1.5, 1e-3, 1.5, 1e-3)
MODEL = ["calibrate", str(GOLDEN / "target"), str(GOLDEN / "drafter"), "--budget", "8"]
RATES = ["--peak-flops", str(SLOW.flops), "--bandwidth", str(SLOW.bandwidth)]


@pytest.fixture(scope="module")
def params():
    return jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"})


@pytest.fixture
def times(params, monkeypatch, tmp_path):
    """Rounds that take what a fit of the roofline says; a folder for kept tables."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    exact = roofline_costs(params.spec.target, SLOW, WIDTHS, CONTEXTS, itemsize=4, fit=FIT)
    rows = np.array(WIDTHS) - 1
    table = make_costs(WIDTHS, CONTEXTS, 2e-3, exact.verify[0, rows])
    calls = []
    monkeypatch.setattr(
        calibrate_roofline, "calibrate", lambda *given, **named: calls.append(named) or table
    )
    return table, calls


def test_policies_find_the_fitted_costs(params, times):
    table, _ = times
    options = {"budget": 8, "builder": "best_first"}
    found = fit_table(params, "dflash", SLOW, **options)
    rows, context = np.arange(1, 9), 48
    exact = roofline_costs(
        params.spec.target, SLOW, WIDTHS, CONTEXTS, draft=2e-3, itemsize=4, fit=FIT
    )
    np.testing.assert_allclose(
        found.costs.seconds(context, rows=rows), exact.seconds(context, rows=rows), rtol=1e-3
    )
    kept = load_costs(table_path(params, "dflash", **options))
    assert kept.fingerprint == found.costs.fingerprint
    assert kept.about["verification"].startswith("roofline, fitted") and kept.about["budget"] == "8"
    policy = policy_for(params, "dflash", "bastion-paper", timed(options | {"seed": 1}))
    np.testing.assert_allclose(policy.controls.costs.verify, found.costs.verify[0], rtol=1e-6)
    assert policy.config.widths == WIDTHS and policy.controls.costs.widths == tuple(range(1, 9))


def test_the_bare_roofline_has_the_measured_drafting(params, times):
    """C(N) = T_draft + T_verify(N), also without calibration of the second."""
    _, calls = times
    options = {"budget": 8, "builder": "best_first"}
    bare = make_bare_table(params, "dflash", SLOW, contexts=CONTEXTS, **options)
    assert bare.about["verification"] == "roofline" and set(bare.draft.tolist()) == {2e-3}
    # Plain rounds, those of one row, and those of the largest tree are timed.
    assert calls == [options | {"widths": (1, 8), "contexts": CONTEXTS, "repeats": 9}]
    exact = roofline_costs(params.spec.target, SLOW, WIDTHS, bare.contexts, itemsize=4)
    kept = load_costs(table_path(params, "dflash", **options))
    np.testing.assert_array_equal(kept.verify, exact.verify)
    assert kept.compiled == (1, 2, 4, 8) and kept.contexts[-1] == params.spec.target.max_positions
    given = make_bare_table(params, "dflash", SLOW, draft=1e-3, widths=(1, 3, 8), **options)
    assert given.contexts[0] == 64 and set(given.draft.tolist()) == {1e-3} and len(calls) == 1
    assert given.compiled == (1, 3, 8)
    with pytest.raises(ValueError, match="with a budget of 1 drafts nothing"):
        make_bare_table(params, "dflash", SLOW, budget=1)


def test_the_command_prints_the_fit(times, capsys, monkeypatch):
    _, calls = times
    assert cli.main([*MODEL, "--fit", *RATES, "--contexts", "32,64", "--repeats", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    sizes = {"contexts": (32, 64), "repeats": 2, "budget": 8, "widths": None}
    assert calls == [sizes | {"temperature": 0.0}]
    assert out[0] == "peak rates, given: 2e+09 FLOP/s, 1e+09 B/s"
    assert out[1].startswith("memory  branch: 1.") and out[2].startswith("compute branch: 1.5")
    for name in ("bare roofline", "with EMA", "fit", "fit to the other contexts"):
        assert f"{name} " in out[3]
    assert out[4].split() == [
        "cached",
        "tokens",
        "drafting",
        "ar",
        "2",
        "rows",
        "4",
        "rows",
        "8",
        "rows",
    ]
    kept = json.loads(Path(out[-1].removeprefix("kept in ")).read_text())
    assert kept["about"]["flops"] == SLOW.flops and kept["compiled"] == list(WIDTHS)
    errors = kept["about"]["root_mean_square_errors"]
    assert errors["fit"] < errors["ema"] < errors["bare"] and len(errors) == 5
    monkeypatch.setattr(calibrate_roofline, "measure_peaks", lambda dtype: SLOW)
    assert cli.main([*MODEL, "--roofline"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("peak rates, measured on this device: 2e+09") and len(calls) == 2
    assert calls[1]["widths"] == (1, 8) and out[2].split()[1:3] == ["2.000", "ms"]
    assert cli.main([*MODEL, "--roofline", "--device", "h100", "--draft-ms", "3"]) == 0
    out = capsys.readouterr().out
    assert f"given: {DEVICES['h100'].flops:.4g} FLOP/s" in out and "3.000 ms" in out
    assert len(calls) == 2


def test_the_command_takes_dense_widths_and_keeps_the_fit(times, capsys, tmp_path):
    _, calls = times
    written, plot = tmp_path / "costs.json", tmp_path / "fit.png"
    files = ["--json", str(written), "--plot", str(plot)]
    model = MODEL[:3]
    assert cli.main([*model, "--fit", *RATES, "--widths", "2-5,8", *files]) == 0
    # 1 is added, and the last one is the budget.
    assert calls[0]["widths"] == (1, 2, 3, 4, 5, 8) and calls[0]["budget"] == 8
    assert json.loads(written.read_text())["about"]["verification"].startswith("roofline, fitted")
    assert plot.stat().st_size > 10_000
    assert cli.main([*model, "--widths", "64", "--budget", "8"]) == 2
    assert "give --budget 64 or more" in capsys.readouterr().err


def test_peak_rates_are_measured(monkeypatch):
    monkeypatch.setitem(ceilings.CEILING_SIZES, "cpu", (1, 32))
    monkeypatch.setitem(ceilings.CEILING_SIZES, "gpu", (1, 32))
    found = measure_peaks(np.dtype("float32"))
    assert found.flops > 0 and found.bandwidth > 0


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (RATES, "add --fit or --roofline, or leave"),
        (["--device", "h100"], "add --fit or --roofline, or leave"),
        (["--fit", "--device", "h100", *RATES], "leave --peak-flops and --bandwidth out"),
        (["--fit", *RATES[:2]], "give both --peak-flops and --bandwidth"),
        (["--roofline", "--peak-flops", "-1", *RATES[2:]], "--peak-flops is -1.0: give a number"),
        (["--fit", "--batch", "2"], "counts one sequence: leave --batch out"),
        (["--fit", "--draft-ms", "2"], "--draft-ms belongs to the bare roofline: add --roofline"),
        (["--roofline", "--draft-ms", "-2"], "--draft-ms is -2.0: give milliseconds"),
        (["--plot", "out.png"], "--plot shows a fit: add --fit"),
    ],
)
def test_refusals(capsys, given, message):
    assert cli.main([*MODEL, *given]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
