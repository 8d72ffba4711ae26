import matplotlib.pyplot as plt
import numpy as np
import pytest

from jaxspec.call.output import DraftTree, Output, Stats, TracedRound
from jaxspec.view.plots import (
    LINES,
    _leaf_heights,
    plot_acceptance,
    plot_speedups,
    plot_tokens_per_round,
    plot_tree,
)

PARENT = np.array([-1, 0, 0, 1, 1, 3])


@pytest.fixture(autouse=True)
def no_window():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def test_leaves_do_not_overlap_and_parents_are_centred():
    heights = _leaf_heights(PARENT)
    assert sorted(heights[[2, 4, 5]]) == [-2, -1, 0]
    assert (
        heights[1] == (heights[3] + heights[4]) / 2 and heights[0] == (heights[1] + heights[2]) / 2
    )


def test_tree_shows_every_row_and_the_path():
    depth = np.array([0, 1, 1, 2, 2, 3])
    tree = DraftTree(
        np.arange(6) + 10, PARENT, depth, np.log([1, 0.5, 0.25, 0.25, 0.2, 0.1]).astype(np.float32)
    )
    axes = plot_tree(TracedRound(tree, (0, 1, 4), 99), lambda token: f"${token}")
    shown = [text.get_text() for text in axes.texts]
    assert [text for text in shown if text[0] == "$"] == [
        "$10",
        "$11",
        "$12",
        "$13",
        "$14",
        "$15",
        "$99",
    ]
    probabilities = ["0.50", "0.25", "0.50 (0.25)", "0.40 (0.20)", "0.40 (0.10)"]
    assert [text for text in shown if text[0] != "$"] == probabilities, (
        "given the parent, and of the path"
    )
    green, grey, orange = "tab:green", "0.6", "tab:orange"
    assert [line.get_color() for line in axes.lines] == [green, grey, grey, green, grey, orange]
    axes.figure.canvas.draw()


def record(method, domain, speedup, bounds, rates=(), length=1.0):
    found = {"method": method, "domain": domain, "speedup": speedup, "speedup_ci": bounds}
    return found | {"acceptance_rate_per_pos": list(rates), "mean_acceptance_length": length}


def test_speedups_have_a_panel_a_domain_and_their_intervals():
    records = [record("ar", domain, 1.0, None) for domain in "ab"]
    records += [
        record("$x", "a", 2.0, [1.5, 2.5]),
        record("y", "a", 0.5, None),
        record("$x", "b", None, None),
    ]
    figure = plot_speedups(records)
    figure.canvas.draw()
    first, second = figure.axes
    assert [bar.get_width() for bar in first.patches] == [2.0, 0.5] and not second.patches
    assert list(first.lines[0].get_xdata()) == [1.5, 2.5] and len(first.lines) == 2, (
        "and the line of ar"
    )
    assert [label.get_text() for label in first.get_yticklabels()] == ["$x", "y"]


def test_acceptance_by_position_draws_the_longest():
    records = [record("ar", "all", 1.0, None)]
    records += [record(f"m{i}", "all", 1.0, None, (0.5, i / 20), 1.5 + i) for i in range(LINES + 1)]
    axes = plot_acceptance(records).axes[0]
    assert len(axes.lines) == LINES and list(axes.lines[0].get_ydata()) == [0.5, LINES / 20]
    assert "m0 (1.50)" not in [text.get_text() for text in axes.get_legend().get_texts()]


def test_tokens_per_round():
    stats = [
        Stats(4, 11, 0, (0, 1, 1, 1, 1), "length", 0.0, 1.0),
        Stats(10, 11, 0, (0, 10), "length", 0.0, 1.0),
    ]
    axes = plot_tokens_per_round(
        {"tree": Output(None, [], stats[0]), "ar": Output(None, [], stats[1])}
    )
    heights = [[bar.get_height() for bar in group] for group in axes.containers]
    assert heights == [[0, 0.25, 0.25, 0.25, 0.25], [0, 1]]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["tree: 2.50 tokens per round", "ar: 1.00 tokens per round"]
