"""Learning to Draft's figures on made-up rounds, whose times and tokens are known."""

import json

import numpy as np
import pytest
import rl_toy as toy

from benchmarks.training import ltd_controls, ltd_rounds
from benchmarks.training.ltd_compare import show_domains
from jaxspec.costs.files import save_costs
from jaxspec.policies.learned.ltd import LtdConfig, make_ltd
from jaxspec.policies.learned.ltd_features import depth_inputs
from jaxspec.policies.learned.networks import init_layers
from jaxspec.policies.store import save_policy
from training.replay.records import save_record
from training.rl import replay

SETTINGS = LtdConfig((1, 2, 4), toy.WIDTH, toy.STEPS, (0, 1, 2), toy.SIZES)


def test_times_are_split_into_drafting_and_verification():
    """A row takes 1 ms more than plain decoding: the first forward. Each step takes 1 ms."""
    drafting, verifying = toy.TIMES.split([0, 100], rows=[4, 2], steps=[3, 0])
    np.testing.assert_allclose(drafting, [0.001 + 3 * 0.001, 0.002])
    np.testing.assert_allclose(verifying, [0.010 - 0.001, 0.010 - 0.002])


def test_shares_and_rounds_by_hand():
    record = toy.make_record(8)
    seconds = record.round_seconds(toy.TIMES)
    deep = record.committed[:, -1, -1] > 1
    walk = replay.walk(record, seconds, np.where(deep, 3, 0), np.where(deep, 1, 0))
    split = ltd_rounds.split_times(record, toy.TIMES, walk)
    total = walk.seconds.sum() / walk.tokens.sum()
    assert split["draft_ms"] + split["verify_ms"] == pytest.approx(1e3 * total, rel=1e-5)
    assert split["draft_share"] == pytest.approx(1e-3 * split["draft_ms"] / total, rel=1e-5)
    rounds = ltd_rounds.describe_rounds(record, walk)
    for sides in rounds.values():
        assert (sides["hard"]["steps"], sides["hard"]["rows"]) == (0, 2)
        assert (sides["easy"]["steps"], sides["easy"]["rows"]) == (3, 4)
        assert sides["hard"]["tokens"] == 1 and sides["easy"]["tokens"] > 6
        assert sides["easy"]["few_steps"] == 1 and sides["easy"]["many_rows"] == 0
    choices = ltd_rounds.count_choices(record, walk)
    share = float(np.mean(deep[walk.positions]))
    assert choices["rows"] == pytest.approx({2: 1 - share, 4: share})
    assert choices["steps"] == pytest.approx({0: 1 - share, 3: share})


def test_an_easy_round_is_easy_whatever_was_chosen():
    """A policy that drafts nothing commits one token everywhere: only what was reachable tells."""
    record = toy.make_record(8)
    walk = replay.walk(record, record.round_seconds(toy.TIMES), 0, 0)
    rounds = ltd_rounds.describe_rounds(record, walk)
    assert set(rounds["reachable"]) == {"hard", "easy"} and set(rounds["committed"]) == {"easy"}


def test_the_study_adds_up_seeds(tmp_path, capsys):
    save_record(toy.make_record(8), tmp_path / "train.npz")
    save_record(toy.make_record(8, seed=1), tmp_path / "test.npz")
    save_costs(toy.TIMES, tmp_path / "times.json")
    depth, size = (
        init_layers(np.array([0, seed], np.uint32), (inputs, 4, 2))
        for seed, inputs in ((1, depth_inputs(toy.WIDTH)), (2, SETTINGS.size_inputs()))
    )
    policy = make_ltd(SETTINGS, depth, size)
    save_policy(policy, tmp_path / "ltd")
    files = [tmp_path / name for name in ("test.npz", "times.json", "train.npz")]
    ways = (f"one={tmp_path}/ltd", f"two={tmp_path}/ltd,{tmp_path}/ltd")
    ltd_rounds.main(ltd_rounds.RoundsOptions(*files, ways, tmp_path / "out.json"))
    found = json.loads((tmp_path / "out.json").read_text())
    assert list(found) == ["static", "oracle", "one", "two"]
    assert found["one"]["draft_ms"] == pytest.approx(found["two"]["draft_ms"])
    rounds = [found[name]["rounds"]["reachable"]["easy"] for name in ("one", "two")]
    assert rounds[1]["rounds"] == 2 * rounds[0]["rounds"] and rounds[1]["rows"] == rounds[0]["rows"]
    printed = capsys.readouterr().out
    assert "draft ms/token" in printed and "> 61 rows" in printed
    halves = ltd_controls.halves_of(policy)
    assert halves["size"].config.depths == () and halves["size"].controls.depth is None
    assert halves["depth"].config.sizes == () and halves["depth"].controls.size is None
    assert ltd_controls.halves_of(halves["size"]) == {}


def test_many_domains_are_counted():
    few = {"code": 1.0, "math": 0.9}
    assert show_domains(few) == "code 1.000 math 0.900"
    many = {f"subject{i}": 0.99 + 0.01 * i for i in range(10)}
    assert show_domains(many) == "faster on 8 of 10, subject0 0.990 to subject9 1.080"
