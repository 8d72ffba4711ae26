import matplotlib.pyplot as plt
import numpy as np
import pytest

from jaxspec.bench.plots import _leaf_heights, plot_tokens_per_round, plot_tree
from jaxspec.output import DraftTree, Output, Round, Stats

PARENT = np.array([-1, 0, 0, 1, 1, 3])


@pytest.fixture(autouse=True)
def no_window():
    plt.switch_backend("agg")
    yield
    plt.close("all")


def test_leaves_do_not_overlap_and_parents_are_centred():
    heights = _leaf_heights(PARENT)
    assert sorted(heights[[2, 4, 5]]) == [-2, -1, 0]
    assert heights[1] == (heights[3] + heights[4]) / 2 and heights[0] == (heights[1] + heights[2]) / 2


def test_tree_shows_every_row_and_the_path():
    depth = np.array([0, 1, 1, 2, 2, 3])
    tree = DraftTree(np.arange(6) + 10, PARENT, depth, -depth.astype(np.float32))
    axes = plot_tree(Round(tree, (0, 1, 4), 99), lambda token: f"${token}")
    assert [text.get_text() for text in axes.texts] == ["$10", "$11", "$12", "$13", "$14", "$15"]
    assert [line.get_color() for line in axes.lines] == ["tab:green", "0.6", "0.6", "tab:green", "0.6"]
    axes.figure.canvas.draw()


def test_tokens_per_round():
    stats = [Stats(4, 11, 0, (0, 1, 1, 1, 1), "length", 0.0, 1.0), Stats(10, 11, 0, (0, 10), "length", 0.0, 1.0)]
    axes = plot_tokens_per_round({"tree": Output(None, [], stats[0]), "ar": Output(None, [], stats[1])})
    heights = [[bar.get_height() for bar in group] for group in axes.containers]
    assert heights == [[0, 0.25, 0.25, 0.25, 0.25], [0, 1]]
    labels = [text.get_text() for text in axes.get_legend().get_texts()]
    assert labels == ["tree: 2.50 tokens a round", "ar: 1.00 tokens a round"]
