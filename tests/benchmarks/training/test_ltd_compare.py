"""Comparison of trained policies on made-up rounds."""

import dataclasses
import json

import jax
import numpy as np
import pytest
import rl_toy as toy

from benchmarks.training import ltd_compare
from jaxspec.costs.files import save_costs
from jaxspec.policies.learned.ltd import LtdConfig, make_ltd
from jaxspec.policies.learned.ltd_features import depth_inputs
from jaxspec.policies.learned.networks import init_layers
from jaxspec.policies.store import save_policy
from training.policies import expected
from training.replay.records import save_record
from training.rl import replay

SETTINGS = LtdConfig((1, 2, 4), toy.WIDTH, toy.STEPS, (0, 1, 2), toy.SIZES)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Records, times, policies that always draft as far as they can and verify 4 or 2 rows, and a
    regression.
    """
    folder = tmp_path_factory.mktemp("compare")
    save_record(toy.make_record(8), folder / "train.npz")
    save_record(toy.make_record(8, seed=1), folder / "test.npz")
    save_costs(toy.TIMES, folder / "times.json")
    zero, keys = jax.nn.initializers.zeros, jax.random.split(jax.random.key(0))
    depth = init_layers(keys[0], (depth_inputs(toy.WIDTH), 4, 2), zero, zero)
    depth[-1]["bias"] = depth[-1]["bias"].at[1].set(1.0)
    size = init_layers(keys[1], (SETTINGS.size_inputs(), 4, 2), zero, zero)
    save_policy(make_ltd(SETTINGS, depth, size), folder / "two")
    size[-1]["bias"] = size[-1]["bias"].at[1].set(1.0)
    save_policy(make_ltd(SETTINGS, depth, size), folder / "four")
    expected.train_regression(
        expected.RegressionOptions(
            folder / "train.npz", folder / "times.json", folder / "regression", depth=3
        )
    )
    return folder


def options(folder, *ways: str) -> ltd_compare.CompareOptions:
    return ltd_compare.CompareOptions(
        folder / "test.npz", folder / "times.json", folder / "train.npz", ways, folder / "out.json"
    )


def test_ways_are_pooled_and_compared(folder, capsys):
    ways = (
        f"four={folder}/four",
        f"seeds={folder}/four,{folder}/two",
        f"size:size={folder}/two",
        f"fit={folder}/regression",
    )
    ltd_compare.main(options(folder, *ways))
    found = json.loads((folder / "out.json").read_text())
    assert (
        list(found) == ["static", "oracle", "four", "seeds", "size:size", "fit"]
        and "four" in capsys.readouterr().out
    )
    record = toy.make_record(8, seed=1)
    seconds = record.round_seconds(toy.TIMES)
    walks = [replay.walk(record, seconds, toy.STEPS, size) for size in (1, 0)]
    speed = [walk.tokens.sum() / walk.seconds.sum() for walk in walks]
    assert found["four"]["tokens_per_second"] == pytest.approx(speed[0])
    both = sum(walk.tokens.sum() for walk in walks) / sum(walk.seconds.sum() for walk in walks)
    assert found["seeds"]["tokens_per_second"] == pytest.approx(both)
    static = found["static"]["tokens_per_second"]
    assert found["seeds"]["each"] == pytest.approx([one / static for one in speed])
    ratio, (low, high) = found["seeds"]["over_first"]
    assert ratio == pytest.approx(both / speed[0]) and low <= ratio <= high
    assert found["four"]["over_first"] == [1.0, [1.0, 1.0]]
    # The half alone keeps the constant's depth.
    assert (
        found["size:size"]["rows"] == 2 and found["size:size"]["steps"] == found["static"]["steps"]
    )
    # Scores say which rounds pay: the regression finds it, as far as three steps are always
    # drafted.
    assert (
        found["fit"]["steps"] == 3
        and found["four"]["tokens_per_second"] < found["fit"]["tokens_per_second"]
    )
    assert found["fit"]["tokens_per_second"] <= found["oracle"]["tokens_per_second"]


def test_regressions_fit_the_trees_of_a_depth(folder):
    record = toy.make_record(8)
    x, y = expected.make_regression_examples(record, 0)
    assert x.shape == (len(record.context), toy.WIDTH + 1) and np.array_equal(
        y, record.committed[:, 0]
    )
    with pytest.raises(ValueError, match="depth is 4: give 0 to 3 draft steps"):
        expected.train_regression(
            expected.RegressionOptions(
                folder / "train.npz", folder / "times.json", folder / "no", depth=4
            )
        )


@pytest.mark.parametrize("way", ["folder", "=folder", "a=", "a:rows=folder"])
def test_ways_that_are_none(folder, way):
    with pytest.raises(ValueError, match="is no way: give name=folder"):
        ltd_compare.compare(options(folder, way))


def test_a_half_that_is_missing(folder):
    settings = dataclasses.replace(SETTINGS, depths=())
    save_policy(
        make_ltd(settings, size=init_layers(jax.random.key(0), (settings.size_inputs(), 2))),
        folder / "size",
    )
    with pytest.raises(ValueError, match="does not decide the depth: leave :depth out"):
        ltd_compare.compare(options(folder, f"a:depth={folder}/size"))
