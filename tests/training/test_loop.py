"""The loop: resumption to the same bits, accumulation, what is logged, and stopping when a run has
gone wrong.
"""

import dataclasses
import json
import os
import signal
import struct

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from training.run.checkpoints import TrainingError
from training.run.loop import LoopOptions, fit
from training.run.metrics import count_tokens
from training.run.optimizer import OptimizerOptions, make_optimizer
from training.run.stopping import catch_stop


class Killed(Exception):
    pass


def start():
    return {"first": {"kernel": jax.random.normal(jax.random.key(0), (6, 8))}, "scale": jnp.ones(8)}


def loss(params, shift, batch):
    outputs = jnp.tanh(batch["x"] @ params["first"]["kernel"]) * params["scale"]
    weights = batch["weight"]
    return {
        "loss": (((outputs - shift) ** 2).sum(-1) @ weights, weights.sum()),
        "largest": (jnp.abs(outputs).sum(), jnp.float32(outputs.size)),
        "never": (jnp.float32(0), jnp.float32(0)),
    }


def batches(step):
    generator = np.random.default_rng(step)
    return {
        "x": generator.normal(size=(4, 6)).astype(np.float32),
        "weight": generator.uniform(size=4).astype(np.float32),
        "tokens": np.zeros((4, 3), np.int32),
    }


def run(folder, kill_at=None, batches=batches, evaluate=None, **options):
    """Eight steps of a two-layer regression; raises `Killed` when batch `kill_at` is asked for."""

    def until_killed(step):
        if step == kill_at:
            raise Killed
        return batches(step)

    loop = dataclasses.replace(LoopOptions(folder, steps=8, save_every=3, parts=2), **options)
    optimizer = make_optimizer(start(), loop.steps, OptimizerOptions("adamw", rate=0.02, warmup=2))
    return fit(
        start(),
        optimizer,
        loss,
        until_killed,
        loop,
        {"width": 6},
        frozen=jnp.float32(1),
        evaluate=evaluate,
    )


@pytest.mark.parametrize(
    ("number", "error", "says"),
    [
        (signal.SIGTERM, TrainingError, "stopped by SIGTERM after step 5, which is saved"),
        (signal.SIGINT, KeyboardInterrupt, None),
    ],
)
def test_a_signal_ends_a_run_with_its_step_saved(tmp_path, whole, number, error, says):
    """The run goes on to the same bits, and signals do again what they did before."""

    def interrupted(step):
        if step == 4:
            os.kill(os.getpid(), number)
        return batches(step)

    before = signal.getsignal(number)
    with pytest.raises(error, match=says):
        run(tmp_path, batches=interrupted)
    assert signal.getsignal(number) == before
    steps = []
    found = run(tmp_path, batches=lambda step: steps.append(step) or batches(step))
    assert steps[0] == 5
    assert_equal(found, whole)


def test_the_second_signal_is_not_caught():
    seen = []
    before = signal.signal(signal.SIGTERM, lambda *_: seen.append("as before"))
    try:
        with catch_stop() as stop:
            signal.raise_signal(signal.SIGTERM)
            assert stop.number == signal.SIGTERM and not stop.is_keyboard and not seen
            signal.raise_signal(signal.SIGTERM)
            assert seen == ["as before"]
    finally:
        signal.signal(signal.SIGTERM, before)


def records(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


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
    assert [record["step"] for record in records(tmp_path)] == [3, 6, 8]
    assert [record["tokens"] for record in records(tmp_path)] == [36, 72, 96]


def test_a_stopped_run_continues_to_the_same_bits(whole, tmp_path):
    stopped = run(tmp_path, stop_after=4)
    assert np.abs(stopped["first"]["kernel"] - whole["first"]["kernel"]).max() > 0
    assert_equal(run(tmp_path), whole)


def test_the_gradient_is_that_of_all_sums_whatever_the_parts(tmp_path):
    def mean(params, batch):
        total, weight = loss(params, jnp.float32(1), batch)["loss"]
        return total / weight

    params, gradient_of = start(), jax.jit(jax.grad(mean))
    for step in range(2):
        params = jax.tree.map(lambda p, g: p - 0.1 * g, params, gradient_of(params, batches(step)))
    for parts in (1, 4):
        options = LoopOptions(tmp_path / str(parts), steps=2, parts=parts)
        found = fit(start(), optax.sgd(0.1), loss, batches, options, {}, frozen=jnp.float32(1))
        jax.tree.map(
            lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6), found, params
        )


def test_metrics_are_means_over_the_batch(tmp_path):
    run(tmp_path, evaluate=lambda params: {"tau_all": 2.5}, steps=3)
    training, evaluated = records(tmp_path)
    assert set(training) == {
        "step",
        "seconds",
        "loss",
        "largest",
        "grad_norm",
        "tokens",
        "tokens_per_second",
    }
    assert 0 < training["largest"] <= 1.1 and evaluated == {
        "step": 3,
        "seconds": evaluated["seconds"],
        "tau_all": 2.5,
    }


def read_events(folder):
    """[(step, tag or None)] of each event file in the order they were opened; None is the order to
    forget later steps.
    """
    from tensorboardX.proto.event_pb2 import Event, SessionLog

    files = []
    for path in sorted(
        (folder / "tensorboard").iterdir(), key=lambda path: path.name.split(".")[-1]
    ):
        data, found = path.read_bytes(), []
        while data:
            size = struct.unpack("Q", data[:8])[0]
            event, data = Event.FromString(data[12 : 12 + size]), data[16 + size :]
            found += [(event.step, value.tag) for value in event.summary.value]
            found += [(event.step, None)] if event.session_log.status == SessionLog.START else []
        files.append(found)
    return files


def test_the_logs_forget_what_a_killed_run_did_beyond_its_checkpoint(tmp_path):
    with pytest.raises(Killed):
        run(tmp_path, kill_at=5, eval_every=5, evaluate=lambda params: {"tau": 1.0})
    assert [record["step"] for record in records(tmp_path)] == [3, 5, 5]
    run(tmp_path)
    assert [record["step"] for record in records(tmp_path)] == [3, 6, 8]
    before, after = read_events(tmp_path)
    assert before[0] == (1, None) and (3, "loss") in before and (5, "tau") in before
    assert after[0] == (4, None) and {step for step, _ in after} == {4, 6, 8}


def test_a_loss_that_is_not_finite_stops_the_run_and_is_never_saved(tmp_path):
    def poisoned(step):
        batch = batches(step)
        batch["weight"][step % 4] = np.nan if step == 4 else 1
        return batch

    with pytest.raises(
        TrainingError, match=r"not finite at step 5: .*last good checkpoint: .*checkpoints/3$"
    ):
        run(tmp_path, batches=poisoned)
    assert [path.name for path in (tmp_path / "checkpoints").iterdir()] == ["3"]


def test_a_weight_that_overflows_in_the_last_update_is_never_saved(tmp_path):
    options = LoopOptions(tmp_path, steps=3, save_every=1, parts=1)
    bursts = optax.chain(
        optax.sgd(1.0), optax.scale_by_schedule(lambda count: jnp.where(count == 1, jnp.inf, 0.1))
    )
    with pytest.raises(
        TrainingError, match=r"not finite after step 2, .*last good checkpoint: .*checkpoints/1$"
    ):
        fit(start(), bursts, loss, batches, options, {}, frozen=jnp.float32(1))


def test_a_batch_that_does_not_split_is_refused(tmp_path):
    with pytest.raises(
        ValueError, match="a batch of 4 rows does not split into 3 parts for 1 devices each"
    ):
        run(tmp_path, parts=3)


def test_tokens_of_a_batch():
    tokens = np.zeros((2, 5), np.int32)
    assert count_tokens(tokens) == count_tokens({"tokens": tokens}) == 10
    assert (
        count_tokens({"tokens": tokens, "segments": np.array([[1, 1, 2, 0, 0], [1, 1, 1, 1, 0]])})
        == 7
    )
    assert count_tokens({"x": np.zeros(3)}) == 0
