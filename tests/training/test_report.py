"""Plots and model cards of a run."""

import json

import pytest
from matplotlib.figure import Figure

from training.report import (
    Card,
    ReportError,
    make_model_card,
    measure_training_cost,
    plot_run,
    read_curves,
)

CARD = Card(
    "toy",
    "A head.",
    "mini",
    "rollouts",
    "python -m training.x",
    "Apache-2.0",
    {"gamma": 4.0, "a|b": 1},
)


@pytest.fixture
def metrics(tmp_path):
    """Three steps, an evaluation, and a line that was cut off."""
    path = tmp_path / "toy" / "metrics.jsonl"
    path.parent.mkdir()
    records = [
        {
            "step": step,
            "seconds": 1500.0 * step,
            "loss": 3.0 / step,
            "accuracy_1": 0.1 * step,
            "accuracy_10": 0.05,
        }
        | {"tokens": 1000 * step}
        for step in (1, 2, 3)
    ]
    records.append({"step": 3, "seconds": 4600.0, "tau_math": 2.125, "accept_expected": 2.5})
    path.write_text("".join(json.dumps(record) + "\n" for record in records) + '{"step": 4, "sec')
    return path


def test_curves(metrics):
    found = read_curves(metrics)
    assert found["loss"] == ([1, 2, 3], [3.0, 1.5, 1.0]) and found["tau_math"] == ([3], [2.125])
    assert set(found) == {"loss", "accuracy_1", "accuracy_10", "tau_math", "accept_expected"}


def test_the_plot_has_loss_acceptance_and_positions(metrics, tmp_path, monkeypatch):
    drawn, save = [], Figure.savefig

    def keep(figure, *args, **kwargs):
        drawn.append([[line.get_label() for line in axes.get_lines()] for axes in figure.axes])
        save(figure, *args, **kwargs)

    monkeypatch.setattr(Figure, "savefig", keep)
    plot_run(metrics, tmp_path / "new" / "run.png")
    assert (tmp_path / "new" / "run.png").read_bytes().startswith(b"\x89PNG")
    assert drawn == [[["loss"], ["1", "10"], ["accept_expected", "tau_math"]]]


def test_the_card_says_what_was_done(metrics):
    text = make_model_card(CARD, metrics)
    for line in (
        "| tau_math | 2.125 (step 3) |",
        "| loss | 1 (step 3) |",
        "| steps | 3 |",
        "| tokens | 3,000 |",
        "| time | 1 h 17 min |",
        "| gamma | `4.0` |",
        "| a\\|b | `1` |",
        "* Licence: Apache-2.0",
        "python -m training.x",
    ):
        assert line in text.splitlines(), line
    assert "![" not in text


def test_the_cost_is_that_of_the_steps_alone(tmp_path, metrics):
    assert measure_training_cost(metrics, 8) == {"steps": 3, "rows": 24}
    records = [
        {"step": 10, "seconds": 90.0, "tokens": 6000, "tokens_per_second": 100.0},
        {"step": 10, "seconds": 500.0, "tau_a": 2},
        {"step": 20, "seconds": 600.0, "tokens": 12000, "tokens_per_second": 200.0},
    ]
    metrics.write_text("".join(json.dumps(record) + "\n" for record in records))
    assert measure_training_cost(metrics, 4) == {
        "steps": 20,
        "rows": 80,
        "tokens": 12000,
        "minutes": 1.5,
    }


def test_a_run_without_metrics_is_named(tmp_path):
    with pytest.raises(ReportError, match="no metrics in .*none.jsonl: train first"):
        plot_run(tmp_path / "none.jsonl", tmp_path / "x.png")
