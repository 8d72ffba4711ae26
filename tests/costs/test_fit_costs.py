"""Costs fitted to synthetic times: the roofline's own come back, and errors are those of numpy."""

import dataclasses

import numpy as np
import pytest

from jaxspec.core.config import MoEConfig, TargetConfig
from jaxspec.costs.fit_costs import fit_costs
from jaxspec.costs.roofline import DEVICES, PeakRates, roofline_costs
from jaxspec.costs.roofline_fit import RooflineFit
from jaxspec.costs.round_costs import make_costs

QWEN = TargetConfig(2560, 36, 32, 8, 128, 9728, vocab_size=151936)
A100 = DEVICES["a100"]
WIDTHS, CONTEXTS = (1, 16, 64, 256, 512), (64, 256, 1024, 2048)
# Both branches are active: memory up to about 200 rows, compute beyond.
TRUE = RooflineFit(1.4, 2e-3, 1.7, 1e-3)


def make_times(spread: float = 0.0, contexts=CONTEXTS, itemsize: int = 2):
    """Measured costs by the true fit, each time off by a factor of up to 1 + `spread`."""
    exact = roofline_costs(QWEN, A100, WIDTHS, contexts, itemsize=itemsize, fit=TRUE).verify[0]
    noise = 1 + spread * np.random.default_rng(0).uniform(-1, 1, exact.shape)
    draft = np.linspace(1e-3, 2e-3, len(contexts))
    return make_costs(WIDTHS, contexts, draft, exact * noise, about={"device": "toy"}), exact


@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_rooflines_own_times_come_back(itemsize):
    measured, exact = make_times(itemsize=itemsize)
    found = fit_costs(QWEN, measured, A100, itemsize)
    np.testing.assert_allclose(found.costs.verify[0], exact, rtol=1e-3)
    np.testing.assert_array_equal(found.costs.plain, found.costs.verify[0, 0])
    np.testing.assert_array_equal(found.costs.draft, measured.draft)
    assert found.error < 1e-5 < found.bare_error and found.left_out_error < 1e-4
    bare = roofline_costs(QWEN, A100, WIDTHS, CONTEXTS, itemsize=itemsize).verify[0]
    np.testing.assert_allclose(found.bare_error, np.sqrt(np.mean((bare - exact) ** 2)), rtol=1e-9)
    about = found.costs.about
    assert about["device"] == "toy" and about["verification"].startswith("roofline, fitted")
    assert RooflineFit(*(about[name] for name in RooflineFit._fields)) == found.fit
    assert (about["flops"], about["bandwidth"]) == tuple(A100)


def test_noise_is_smoothed():
    measured, exact = make_times(spread=0.05)
    found = fit_costs(QWEN, measured, A100)
    error = found.costs.verify[0] / exact - 1
    assert np.abs(error).max() < 0.05 and np.all(np.diff(found.costs.verify[0], axis=0) >= 0)
    residual = found.costs.verify[0] - measured.verify[0]
    np.testing.assert_allclose(found.error, np.sqrt(np.mean(residual**2)), rtol=1e-9)
    assert found.error < found.left_out_error < found.bare_error


def test_a_single_context_predicts_no_other():
    assert fit_costs(QWEN, make_times(contexts=(64,))[0], A100).left_out_error is None


def test_a_wrong_peak_rate_is_corrected_by_the_scale():
    measured, _ = make_times()
    found = fit_costs(QWEN, measured, PeakRates(2 * A100.flops, A100.bandwidth))
    np.testing.assert_allclose(found.fit.compute_scale, 2 * TRUE.compute_scale, rtol=0.02)
    np.testing.assert_allclose(found.costs.verify, measured.verify, rtol=1e-3)


def test_refusals():
    measured, _ = make_times()
    sparse = dataclasses.replace(QWEN, moe=MoEConfig(8, 2, 64, True))
    with pytest.raises(ValueError, match="dense targets only, and this one has experts: measure"):
        fit_costs(sparse, measured, A100)
    with pytest.raises(ValueError, match="dense targets only"):
        roofline_costs(sparse, A100, (1, 8), (64,))
    with pytest.raises(ValueError, match="measure a table by rows"):
        fit_costs(QWEN, dataclasses.replace(measured, step=measured.draft), A100)
    with pytest.raises(ValueError, match="cannot fit 2 times: give at least 4"):
        fit_costs(QWEN, make_costs((1, 2), (64,), 0.0, [[1.0], [2.0]]), A100)
