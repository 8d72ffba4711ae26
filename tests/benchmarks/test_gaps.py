"""The rank-1 gap against hand-computed values, and the command."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as cli
from benchmarks.ranks.measure_gaps import summarise_gaps
from jaxspec.call.output import DraftTree, TracedRound
from jaxspec.view.rank1_gap import find_rank1_branch, measure_rank1_gap

# Root 0; 1 and 2 below it, 2 the likelier one for the drafter; 3 and 4 below 2; 5 below 1.
TREE = DraftTree(
    token=np.array([9, 10, 20, 21, 22, 11]),
    parent=np.array([-1, 0, 0, 2, 2, 1]),
    depth=np.array([0, 1, 1, 2, 2, 2]),
    logprob=np.float32([0, -2, -1, -1.5, -3, -2.5]),
    target_logprob=np.float32([0, -0.1, -4, -60, -0.2, -0.3]),
)


def make_round(gap: float, accepted: int, depth: int = 1) -> TracedRound:
    """A chain whose whole branch has this gap, all of it from its last token."""
    count = depth + 1
    target = np.zeros(count)
    target[-1] = -1.0 - gap
    drafted = np.append(np.zeros(count - 1), -1.0)
    rows = np.arange(count)
    tree = DraftTree(rows, rows - 1, rows, drafted, target)
    return TracedRound(tree, tuple(range(accepted + 1)), 7)


def test_the_gap_adds_up_along_the_drafters_best_branch():
    """Its cumulative scores minus the sum of the target's log-probabilities, one per token."""
    assert find_rank1_branch(TREE) == [2, 3]
    # -1 - (-4) = 3; -1.5 - (-4 - 60) = 62.5.
    np.testing.assert_allclose(measure_rank1_gap(TREE), [3.0, 62.5])


def test_traces_of_the_serving_engine_are_refused():
    with pytest.raises(ValueError, match="trace with decode"):
        measure_rank1_gap(DraftTree(TREE.token, TREE.parent, TREE.depth, TREE.logprob))


def test_bins_are_those_of_table_9():
    """A gap on a bound belongs to the bin above it, and last rounds of longer texts are left out."""
    texts = [
        [make_round(4.9, 6), make_round(-3, 2), make_round(500, 0)],
        [make_round(5.0, 3)],
        [make_round(80.0, 1, depth=2), make_round(500, 0)],
        [make_round(39.9, 2)],
    ]
    found = summarise_gaps(texts)
    assert [one["trees"] for one in found["first"]["bins"]] == [1, 1, 1, 0, 1]
    assert [one["share"] for one in found["first"]["bins"]] == [0.25, 0.25, 0.25, 0, 0.25]
    assert [one["accepted"] for one in found["first"]["bins"]] == [6, 3, 2, None, 1]
    assert found["first"]["median"] == pytest.approx((5.0 + 39.9) / 2)
    assert found["first"]["mean"] == pytest.approx((4.9 + 5.0 + 80.0 + 39.9) / 4)
    assert found["first"]["accepted"] == 3
    assert [one["trees"] for one in found["rounds"]["bins"]] == [2, 1, 1, 0, 1]
    assert found["rounds"]["bins"][0]["accepted"] == 4
    assert [one["trees"] for one in found["depths"]] == [5, 1]
    assert found["depths"][0]["mean"] == pytest.approx((4.9 - 3 + 5 + 0 + 39.9) / 5)
    assert found["prompts"][0] == {
        "first": pytest.approx(4.9),
        "trees": 2,
        "median": pytest.approx(0.95),
        "mean": pytest.approx(0.95),
    }


def test_texts_without_a_tree_are_refused():
    with pytest.raises(ValueError, match="--max-new-tokens"):
        summarise_gaps([[make_round(1, 1)], []])
    with pytest.raises(ValueError, match="--budget"):
        summarise_gaps([[make_round(1, 0, depth=0)]])


@pytest.mark.slow
def test_the_command_compares_two_heads(tmp_path, capsys):
    out = tmp_path / "gaps.json"
    arguments = ["--drafters", "jetspec,dflash", "--limit", "1", "--max-new-tokens", "12"]
    assert cli.main(["gaps", *arguments, "--budget", "16", "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "below 5: faithful" in printed and "The gap of dflash exceeds that of jetspec" in printed
    report = json.loads(out.read_text())
    assert [one["drafter"] for one in report["results"]] == ["jetspec", "dflash"]
    for one in report["results"]:
        assert len(one["prompts"]) == report["prompts"]
        assert sum(bin["trees"] for bin in one["first"]["bins"]) == report["prompts"]
    assert sum(pair["share"] for pair in report["pairs"]) <= 1


def test_an_unknown_drafter_is_told(capsys):
    assert cli.main(["gaps", "--drafters", "nobody"]) == 2
    assert "choose of" in capsys.readouterr().err
