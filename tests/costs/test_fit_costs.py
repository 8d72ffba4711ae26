"""Costs fitted to synthetic times: the roofline's own come back, and errors are those of numpy."""

import dataclasses

import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from jaxspec.core.config import MoEConfig, TargetConfig
from jaxspec.costs.files import load_costs, save_costs
from jaxspec.costs.fit_costs import fit_costs, run_ema
from jaxspec.costs.roofline import (
    DEVICES,
    PeakRates,
    double_contexts,
    paper_bytes,
    paper_flops,
    roofline_costs,
)
from jaxspec.costs.roofline_fit import RooflineFit
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.size_rules import choose_best_ratio, choose_first_decrease

QWEN = TargetConfig(
    hidden_size=2560,
    num_layers=36,
    num_heads=32,
    num_kv_heads=8,
    head_dim=128,
    ffn_size=9728,
    vocab_size=151936,
)
A100 = DEVICES["a100"]
WIDTHS, CONTEXTS = (1, 16, 64, 256, 512), (64, 256, 1024, 2048)
# Both branches are active: memory up to about 200 rows, compute beyond.
TRUE = RooflineFit(1.4, 2e-3, 1.7, 1e-3)


def make_times(spread: float = 0.0, contexts=CONTEXTS, itemsize: int = 2):
    """Measured costs by the true fit, each time off by a factor of up to 1 + `spread`."""
    exact = at_widths(roofline_costs(QWEN, A100, WIDTHS, contexts, itemsize=itemsize, fit=TRUE))
    noise = 1 + spread * np.random.default_rng(0).uniform(-1, 1, exact.shape)
    draft = np.linspace(1e-3, 2e-3, len(contexts))
    return make_costs(WIDTHS, contexts, draft, exact * noise, about={"device": "toy"}), exact


def at_widths(costs, contexts=None):
    """The verification of costs by rows, at `WIDTHS` and at some of their contexts."""
    known = costs.contexts.tolist()
    columns = [known.index(context) for context in (known if contexts is None else contexts)]
    return costs.verify[0][np.array(WIDTHS) - 1][:, columns]


@pytest.mark.parametrize("itemsize", [2, 4])
def test_the_rooflines_own_times_come_back(itemsize):
    measured, exact = make_times(itemsize=itemsize)
    found = fit_costs(QWEN, measured, A100, itemsize)
    np.testing.assert_allclose(at_widths(found.costs, CONTEXTS), exact, rtol=1e-3)
    np.testing.assert_array_equal(found.costs.plain, found.costs.verify[0, 0])
    errors = found.errors
    assert errors["fit"] < 1e-5 < errors["bare"] and errors["left_out"] < 1e-4
    bare = at_widths(roofline_costs(QWEN, A100, WIDTHS, CONTEXTS, itemsize=itemsize))
    np.testing.assert_allclose(errors["bare"], np.sqrt(np.mean((bare - exact) ** 2)), rtol=1e-9)
    about = found.costs.about
    assert about["device"] == "toy" and about["verification"].startswith("roofline, fitted")
    assert RooflineFit(*(about[name] for name in RooflineFit._fields)) == found.fit
    assert (about["flops"], about["bandwidth"]) == tuple(A100)
    assert about["measured"]["seconds"] == exact.tolist()
    np.testing.assert_allclose(about["measured"]["bare"], bare, rtol=1e-12)


def test_every_number_of_rows_has_its_own_cost(tmp_path):
    """By the formula, and not that of the next compiled width; also at contexts between and beyond
    the measured ones, and from a file.
    """
    measured, _ = make_times()
    found = fit_costs(QWEN, measured, A100)
    assert found.costs.compiled == WIDTHS and found.costs.widths == tuple(range(1, 513))
    save_costs(found.costs, tmp_path / "costs.json")
    kept = load_costs(tmp_path / "costs.json")
    assert kept.compiled == WIDTHS and kept.fingerprint == found.costs.fingerprint
    scales = found.fit
    for context in (64, 128, QWEN.max_positions):
        draft = np.interp(context, CONTEXTS, measured.draft)
        for rows in (1, 2, 17, 255, 511):
            compute = paper_flops(QWEN, rows, context) / A100.flops
            memory = paper_bytes(QWEN, rows, context) / A100.bandwidth
            wanted = draft + max(
                scales.memory_scale * memory + scales.memory_offset,
                scales.compute_scale * compute + scales.compute_offset,
            )
            assert float(kept.seconds(context, rows=rows)) == pytest.approx(wanted, rel=1e-12)
    staircase = measured.seconds(128, rows=[17, 63])
    assert staircase[0] == staircase[1], "measured costs stay as they are"


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.floats(0, 4)] * 4),
    st.lists(st.lists(st.floats(0.001, 1), min_size=1, max_size=6), min_size=1, max_size=6),
    st.integers(16, 5000),
    st.floats(0, 0.02),
)
def test_the_first_decrease_is_the_best_size(scales, marginals, context, draft):
    """Proposition 2.4, for best-first scores of random marginals and any fit: as costs are convex."""
    memory, memory_offset, compute, compute_offset = scales
    fit = RooflineFit(0.1 + memory, 1e-2 * memory_offset, 0.1 + compute, 1e-2 * compute_offset)
    scores = best_first_scores(marginals, 48)
    costs = roofline_costs(QWEN, A100, (1, 16, 48), (64, 1024, 4096), draft=draft, fit=fit)
    drafting, verify = costs.by_rows().interpolate(jnp.int32(context))
    worth, seconds = np.cumsum(scores), np.float64(drafting + verify)
    rate = worth / seconds
    first, best = (int(rule(worth, seconds)) for rule in (choose_first_decrease, choose_best_ratio))
    assert rate[first - 1] >= rate[best - 1] * (1 - 1e-6)


def best_first_scores(marginals, most):
    """The largest products of one number of each of the first rows, descending, 1 first; 0 where
    there are fewer than `most`.
    """
    paths, level = [1.0], [1.0]
    for row in marginals:
        row = np.array(row) / max(1.0, sum(row))
        level = sorted((path * q for path in level for q in row), reverse=True)[:most]
        paths += level
    return np.sort([*paths, *[0.0] * most])[::-1][:most]


def test_noise_is_smoothed():
    measured, exact = make_times(spread=0.05)
    found = fit_costs(QWEN, measured, A100)
    error = at_widths(found.costs, CONTEXTS) / exact - 1
    assert np.abs(error).max() < 0.05 and np.all(np.diff(found.costs.verify[0], axis=0) >= 0)
    residual = at_widths(found.costs, CONTEXTS) - measured.verify[0]
    errors = found.errors
    np.testing.assert_allclose(errors["fit"], np.sqrt(np.mean(residual**2)), rtol=1e-9)
    assert errors["fit"] < errors["left_out"] < errors["bare"]


def test_the_running_factor_repairs_a_factor_and_no_more():
    """Errors of the second pass over all times, each predicted before it is seen."""
    predicted = np.array([1.0, 1.0, 1.0])
    seen = run_ema(predicted, np.array([3.0, 3.0, 3.0]))
    # c after 3, 4 and 5 observations of ratio 3, from 1.
    np.testing.assert_allclose(seen, [-2 * 0.8**3, -2 * 0.8**4, -2 * 0.8**5])
    measured, _ = make_times()
    errors = fit_costs(QWEN, measured, A100).errors
    assert errors["fit"] < errors["ema"] < errors["bare"]
    assert errors["ema_fit"] < 1e-5


def test_contexts_are_doubled():
    assert double_contexts((64, 256), 1000).tolist() == [64, 128, 256, 512, 1000]
    assert double_contexts((100,), 64).tolist() == [100]


def test_a_single_context_predicts_no_other():
    assert fit_costs(QWEN, make_times(contexts=(64,))[0], A100).errors["left_out"] is None


def test_a_wrong_peak_rate_is_corrected_by_the_scale():
    measured, _ = make_times()
    found = fit_costs(QWEN, measured, PeakRates(2 * A100.flops, A100.bandwidth))
    np.testing.assert_allclose(found.fit.compute_scale, 2 * TRUE.compute_scale, rtol=0.02)
    np.testing.assert_allclose(at_widths(found.costs, CONTEXTS), measured.verify[0], rtol=1e-3)


def test_refusals():
    measured, _ = make_times()
    sparse = dataclasses.replace(
        QWEN, moe=MoEConfig(num_experts=8, experts_per_token=2, expert_ffn_size=64)
    )
    with pytest.raises(ValueError, match="dense targets only, and this one has experts: measure"):
        fit_costs(sparse, measured, A100)
    with pytest.raises(ValueError, match="dense targets only"):
        roofline_costs(sparse, A100, (1, 8), (64,))
    with pytest.raises(ValueError, match="measure a table by rows"):
        fit_costs(QWEN, dataclasses.replace(measured, step=measured.draft), A100)
    with pytest.raises(ValueError, match="cannot fit 2 times: give at least 4"):
        fit_costs(QWEN, make_costs((1, 2), (64,), 0.0, [[1.0], [2.0]]), A100)
