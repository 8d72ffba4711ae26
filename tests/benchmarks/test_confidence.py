"""How well confidences predict acceptance."""

import dataclasses

import numpy as np
import pytest
from golden_data import SHIPPED, arrays

import jaxspec
from benchmarks import __main__ as cli
from benchmarks.confidence.calibration import calibrate, rank_area
from benchmarks.confidence.measure_confidence import (
    FITTED,
    HEAD,
    PATHS,
    measure_confidence,
    render_confidence,
)
from benchmarks.confidence.temperatures import fit_temperatures, prefix_probability
from jaxspec.io.text.prompt_files import LabelledPrompt

GOLDEN = arrays("dspark", "calibration.npz")


def test_figures_are_deepspecs():
    found = calibrate(GOLDEN["prefix_prob"], GOLDEN["prefix_label"])
    ours = dict(
        total_weight=found.count, ece=found.error, auc=found.ranking, brier=found.brier,
        pred_mean=found.predicted, target_mean=found.accepted,
    )  # fmt: skip
    for name, values in ours.items():
        np.testing.assert_allclose(values, GOLDEN[name], rtol=1e-9, err_msg=name)


def test_the_area_is_the_share_of_pairs_in_order():
    rng = np.random.default_rng(0)
    predicted, accepted = rng.random(60), (rng.random(60) < 0.4).astype(float)
    right, wrong = predicted[accepted == 1], predicted[accepted == 0]
    share = np.mean(right[:, None] > wrong[None])
    assert rank_area(predicted, accepted) == pytest.approx(share, abs=2e-3)
    assert np.isnan(rank_area(predicted, np.ones(60)))


def draw_rounds(temperatures, count=20_000):
    """Rounds whose head is off by a factor per position: logits and accepted prefixes."""
    rng = np.random.default_rng(1)
    true = rng.normal(0.5, 1.5, (count, len(temperatures)))
    accepted = np.cumprod(rng.random(true.shape) < 1 / (1 + np.exp(-true)), axis=1)
    return true * temperatures, accepted.astype(float)


def test_temperatures_undo_what_made_the_head_too_sure():
    wrong = np.array([2.0, 1.0, 0.5])
    logits, accepted = draw_rounds(wrong)
    found = fit_temperatures(logits, accepted)
    np.testing.assert_allclose(found, wrong, rtol=0.3)
    before = calibrate(prefix_probability(logits), accepted).error
    after = calibrate(prefix_probability(logits, found), accepted).error
    assert after[0] < before[0] / 3 and after.max() < 0.02


def test_temperatures_read_only_what_was_drafted():
    logits, accepted = draw_rounds(np.array([2.0, 2.0]))
    cut = logits.copy()
    cut[::2, 1] = np.nan
    found = fit_temperatures(cut, accepted)
    assert found[0] == fit_temperatures(logits, accepted)[0]
    assert found[1] == fit_temperatures(logits[1::2], accepted[1::2])[1] != 1
    with pytest.raises(ValueError, match="no round drafted"):
        fit_temperatures(np.full((3, 2), np.nan), np.zeros((3, 2)))


@pytest.fixture(scope="module")
def dspark():
    folders = SHIPPED / "dspark" / "target", SHIPPED / "dspark" / "draft_vanilla"
    return jaxspec.load(folders[0], drafter={"dspark": folders[1]}, dtype="float32")


def with_temperatures(params, temperatures):
    """`params` whose confidence head has these temperatures."""
    config = dataclasses.replace(
        params.spec.drafter("dspark"), confidence_temperatures=tuple(temperatures)
    )
    return params.replace(spec=dataclasses.replace(params.spec, drafters=(("dspark", config),)))


@pytest.fixture(scope="module")
def prompts():
    rng = np.random.default_rng(0)
    return [LabelledPrompt("text", rng.integers(0, 160, 8).tolist()) for _ in range(6)]


@pytest.fixture(scope="module")
def report(dspark, prompts):
    return measure_confidence(dspark, prompts, "dspark", options={"max_new_tokens": 48})


def rows_of(report):
    return {(r["source"], r["position"]): r for r in report["results"]}


@pytest.mark.thorough
def test_a_drafter_is_measured_and_fitted(dspark, prompts, report):
    rows = rows_of(report)
    assert {source for source, _ in rows} == {PATHS, HEAD, FITTED}
    for position in range(1, 4):
        assert rows[HEAD, position]["accepted"] == rows[PATHS, position]["accepted"]
    text = render_confidence(report)
    assert "fitted temperatures" in text and "calibration error" in text
    with pytest.raises(ValueError, match="at least two prompts"):
        measure_confidence(dspark, prompts[:1], "dspark")


@pytest.mark.slow
def test_temperatures_of_the_drafters_own_config_give_the_fitted_figures(dspark, prompts, report):
    rows = rows_of(report)
    own = with_temperatures(dspark, report["temperatures"])
    again = measure_confidence(own, prompts, "dspark", options={"max_new_tokens": 48})
    np.testing.assert_allclose(again["temperatures"], report["temperatures"], rtol=0.06)
    for row in again["results"]:
        if row["source"] == HEAD:
            fitted = rows[FITTED, row["position"]]
            assert row["predicted"] == pytest.approx(fitted["predicted"], abs=1e-5)


def test_temperatures_are_kept_with_the_drafter(dspark, tmp_path):
    own = with_temperatures(dspark, [0.5, 2.0])
    jaxspec.save(own, tmp_path)
    again = jaxspec.load(tmp_path, dtype="float32")
    assert again.spec.drafter("dspark").confidence_temperatures == (0.5, 2.0)
    with pytest.raises(ValueError, match="give numbers above 0"):
        with_temperatures(dspark, [0.0])


def test_a_drafter_without_the_head_is_refused():
    params = jaxspec.load("mini", dtype="float32")
    with pytest.raises(ValueError, match="needs a drafter with a confidence head"):
        jaxspec.decode(
            params,
            [40, 41],
            drafter="dflash",
            speculation=jaxspec.Speculation(builder="chain+confidence"),
            budget=4,
        )
    with pytest.raises(ValueError, match="choose 'logprob' or 'confidence'"):
        jaxspec.builders.chain("entropy")


@pytest.mark.slow
def test_score_temperatures_are_tried_on_one_half_and_counted_on_the_other(capsys):
    arguments = ["--method", "jetspec-best_first@6", "--grid", "0.4,1", "--max-new-tokens", "24"]
    assert cli.main(["scores", *arguments, "--limit", "2"]) == 0
    text = capsys.readouterr().out
    assert "best" in text and "0.40" in text and "1.00" in text
    for wrong, message in (
        (["--method", "ar"], "give a drafted method"),
        (["--method", "jetspec-best_first@6", "--grid", "0.4,x"], "give numbers with commas"),
        (["--method", "jetspec-best_first@6", "--grid", "0"], "give numbers above 0"),
    ):
        assert cli.main(["scores", *wrong]) != 0
        assert message in capsys.readouterr().err
