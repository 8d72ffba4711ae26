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
MODEL = ["calibrate", str(GOLDEN / "target"), str(GOLDEN / "drafter"), "--budget", "8"]
RATES = ["--peak-flops", str(SLOW.flops), "--bandwidth", str(SLOW.bandwidth)]


@pytest.fixture(scope="module")
def params():
    return jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"})


@pytest.fixture
def times(params, monkeypatch, tmp_path):
    """Rounds that take what a fit of the roofline says; a folder for kept tables."""
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path))
    fit = RooflineFit(1.5, 1e-3, 1.5, 1e-3)
    exact = roofline_costs(params.spec.target, SLOW, WIDTHS, CONTEXTS, itemsize=4, fit=fit)
    table = make_costs(WIDTHS, CONTEXTS, 2e-3, exact.verify[0])
    calls = []
    monkeypatch.setattr(
        calibrate_roofline, "calibrate", lambda *given, **named: calls.append(named) or table
    )
    return table, calls


def test_policies_find_the_fitted_costs(params, times):
    table, _ = times
    options = {"budget": 8, "builder": "best_first"}
    found = fit_table(params, "dflash", SLOW, **options)
    np.testing.assert_allclose(found.costs.verify, table.verify, rtol=1e-3)
    kept = load_costs(table_path(params, "dflash", **options))
    assert kept.fingerprint == found.costs.fingerprint
    assert kept.about["verification"].startswith("roofline, fitted") and kept.about["budget"] == "8"
    policy = policy_for(params, "dflash", "bastion-paper", timed(options | {"seed": 1}))
    np.testing.assert_allclose(policy.controls.costs.verify, found.costs.verify[0], rtol=1e-6)
    bare = make_bare_table(params, "dflash", SLOW, contexts=CONTEXTS, **options)
    assert bare.about["verification"] == "roofline" and bare.draft.tolist() == [0, 0]
    exact = roofline_costs(params.spec.target, SLOW, WIDTHS, CONTEXTS, itemsize=4)
    np.testing.assert_array_equal(
        load_costs(table_path(params, "dflash", **options)).verify, exact.verify
    )
    assert make_bare_table(params, "dflash", SLOW, **options).contexts[0] == 64
    with pytest.raises(ValueError, match="with a budget of 1 drafts nothing"):
        make_bare_table(params, "dflash", SLOW, budget=1)


def test_the_command_prints_the_fit(times, capsys, monkeypatch):
    _, calls = times
    assert cli.main([*MODEL, "--fit", *RATES, "--contexts", "32,64", "--repeats", "2"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert calls == [{"contexts": (32, 64), "repeats": 2, "budget": 8, "temperature": 0.0}]
    assert out[0] == "peak rates, given: 2e+09 FLOP/s, 1e+09 B/s"
    assert out[1].startswith("memory  branch: 1.") and out[2].startswith("compute branch: 1.5")
    assert "bare roofline" in out[3] and "fit to the other contexts" in out[3]
    kept = json.loads(Path(out[-1].removeprefix("kept in ")).read_text())
    assert kept["about"]["flops"] == SLOW.flops and kept["widths"] == list(WIDTHS)
    monkeypatch.setattr(calibrate_roofline, "measure_peaks", lambda dtype: SLOW)
    assert cli.main([*MODEL, "--roofline"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("peak rates, measured on this device: 2e+09") and len(calls) == 1
    assert cli.main([*MODEL, "--roofline", "--device", "h100"]) == 0
    assert f"given: {DEVICES['h100'].flops:.4g} FLOP/s" in capsys.readouterr().out


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
    ],
)
def test_refusals(capsys, given, message):
    assert cli.main([*MODEL, *given]) == 2
    error = capsys.readouterr().err
    assert message in error and error.count("\n") == 1
