"""Where first candidates are right: the places of a tree, and the command."""

import json

import numpy as np
import pytest

from benchmarks import __main__ as cli
from benchmarks.ranks.places import BELOW, SIBLING, SPINE, count_seen, list_seen, probe_paths
from jaxspec.call.output import DraftTree, TracedRound

# Root 0; 1 and 2 below it; 3 and 4 below 1, 5 below 2; 6 below 4, 7 below 5.
TREE = DraftTree(
    token=np.array([9, 10, 20, 11, 12, 21, 13, 22]),
    parent=np.array([-1, 0, 0, 1, 1, 2, 4, 5]),
    depth=np.array([0, 1, 1, 2, 2, 2, 3, 3]),
    logprob=np.zeros(8),
)


@pytest.mark.parametrize(
    ("path", "bonus", "seen"),
    [
        ((0,), 30, [(SPINE, 1, False)]),
        ((0, 1, 3), 30, [(SPINE, 1, True), (SPINE, 2, True)]),
        ((0, 1, 4, 6), 0, [(SPINE, 1, True), (SPINE, 2, False), (SIBLING, 3, True)]),
        ((0, 2), 30, [(SPINE, 1, False), (SIBLING, 2, False)]),
        ((0, 2, 5, 7), 0, [(SPINE, 1, False), (SIBLING, 2, True), (BELOW, 3, True)]),
    ],
)
def test_places_follow_the_ranks_of_the_path(path, bonus, seen):
    assert list(list_seen(TracedRound(TREE, path, bonus))) == seen


def test_counts_leave_the_last_round_out():
    rounds = [TracedRound(TREE, (0, 2), 30), TracedRound(TREE, (0, 1, 3), 30)]
    counts = count_seen([rounds, rounds[:1]])
    assert counts[SPINE, 1].tolist() == [[0, 1], [0, 0]]
    assert set(counts) == {(SPINE, 1), (SIBLING, 2)}


def test_the_probe_has_a_chain_below_every_sibling():
    paths = probe_paths(3, 2)
    assert set(paths) == {
        *((0,), (0, 0), (0, 0, 0)),
        *((1,), (1, 0), (1, 0, 0), (0, 1), (0, 1, 0), (0, 0, 1)),
    }  # fmt: skip


@pytest.mark.slow
def test_the_command_tells_a_drafter_that_knows_its_branch(tmp_path, capsys):
    """EAGLE-3 reads the token that it continues from; a block drafter's siblings share its guess."""
    out = tmp_path / "ranks.json"
    arguments = ["--drafters", "dflash,eagle3", "--limit", "2", "--max-new-tokens", "64"]
    assert cli.main(["ranks", *arguments, "--depth", "4", "--json", str(out)]) == 0
    assert "after a sibling" in capsys.readouterr().out
    found = json.loads(out.read_text())["results"]
    share = {(r["drafter"], r["place"]): r["share"] for r in found if r["depth"] is None}
    assert share["dflash", SPINE] - share["dflash", SIBLING] > 0.2
    assert share["eagle3", SPINE] - share["eagle3", SIBLING] < 0.2
    assert all(0 <= r["right"] <= r["seen"] for r in found)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [(["--drafters", "nobody"], "choose of"), (["--depth", "1"], "give at least 2")],
)
def test_wrong_options_are_told(wrong, message, capsys):
    assert cli.main(["ranks", *wrong]) != 0
    assert message in capsys.readouterr().err
