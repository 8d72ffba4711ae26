"""Resumption to the same bits, and refusal of checkpoints that do not fit."""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from training.checkpoints import CheckpointError, Checkpoints
from training.loop import LoopOptions, fit
from training.optimizer import make_optimizer, matrix_axes, zero_residual

RECIPE = {"width": 6}


class Killed(Exception):
    pass


def run(folder, kill_at=None, recipe=RECIPE, **options):
    """Eight steps of a two-layer regression with Muon; raises `Killed` when batch `kill_at` is asked for."""
    keys = jax.random.split(jax.random.key(0), 2)
    params = {"first": {"kernel": jax.random.normal(keys[0], (6, 8))}, "scale": jnp.ones(8)}

    def loss(params, batch):
        return jnp.mean((jnp.tanh(batch @ params["first"]["kernel"]) * params["scale"] - 1) ** 2), {}

    def batches(step):
        if step == kill_at:
            raise Killed
        return np.random.default_rng(step).normal(size=(4, 6)).astype(np.float32)

    loop = dataclasses.replace(LoopOptions(folder, steps=8, save_every=3, parts=2), **options)
    optimizer = make_optimizer(params, loop.steps, muon_rate=0.02, adam_rate=0.01, warmup=2, clip=1.0)
    return fit(params, optimizer, loss, batches, loop, recipe)


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    return run(tmp_path_factory.mktemp("whole"))


def assert_equal(a, b):
    jax.tree.map(np.testing.assert_array_equal, a, b)


def test_a_killed_run_continues_to_the_same_bits(whole, tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, kill_at=5)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]
    assert_equal(run(tmp_path), whole)
    steps = [json.loads(line)["step"] for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert steps == sorted(set(steps))


def test_a_stopped_run_continues_to_the_same_bits(whole, tmp_path):
    stopped = run(tmp_path, stop_after=4)
    assert np.abs(stopped["first"]["kernel"] - whole["first"]["kernel"]).max() > 0
    assert_equal(run(tmp_path), whole)


def test_a_checkpoint_of_another_recipe_is_refused(tmp_path):
    run(tmp_path, stop_after=3)
    with pytest.raises(CheckpointError, match="made with width=6, not 7: .*--loop.changed width"):
        run(tmp_path, recipe={"width": 7})
    run(tmp_path, recipe={"width": 7}, changed=("width",), stop_after=4)


@pytest.mark.parametrize("victim", ["state", "recipe"])
def test_a_truncated_checkpoint_is_named(tmp_path, victim):
    run(tmp_path, stop_after=3)
    for path in (tmp_path / "checkpoints" / "3" / victim).rglob("*"):
        if path.is_file():
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    with pytest.raises(CheckpointError, match="checkpoints/3 (cannot be read|is truncated): delete it"):
        run(tmp_path)


def test_reading_without_a_checkpoint(tmp_path):
    with pytest.raises(CheckpointError, match="no checkpoints in .*train first"):
        Checkpoints.read(tmp_path / "none")


def test_muon_takes_hidden_kernels_only():
    params = {"embedding": jnp.ones((4, 2)), "layer": {"o": {"kernel": jnp.ones((2, 2))}, "norm": {"scale": jnp.ones(2)}}}
    axes = matrix_axes(params)
    assert axes["layer"]["o"]["kernel"] is not None
    assert axes["embedding"] is None and axes["layer"]["norm"]["scale"] is None
    zeroed = zero_residual(params)
    assert not zeroed["layer"]["o"]["kernel"].any() and zeroed["layer"]["norm"]["scale"].all()
    with pytest.raises(ValueError, match="warmup 9 must be"):
        make_optimizer(params, 5, muon_rate=1.0, adam_rate=1.0, warmup=9, clip=1.0)
