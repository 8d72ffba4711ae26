"""LTD's schedule on made-up rounds: it learns, continues where it was stopped, and the live task is
the replayed one.
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rl_toy as toy

import jaxspec
from jaxspec.costs.files import save_costs
from jaxspec.policies.store import load_policy
from training.replay.records import load_record, save_record
from training.rl import ltd, problem, replay
from training.rl.environment import make_depth_environment, make_size_environment
from training.rl.live import Texts, make_live
from training.rl.options import TextOptions
from training.rl.presets import PRESETS
from training.rl.record import record_texts
from training.run.checkpoints import CheckpointError

pytestmark = pytest.mark.slow


@pytest.fixture
def options(tmp_path, monkeypatch):
    """A small version of our preset."""
    small = dict(rollout=256, minibatch=64, epochs=4, actor=(16,), critic=(16,), rate=5e-3)
    ours = PRESETS["jaxspec"]
    tiny = dataclasses.replace(
        ours,
        size=dataclasses.replace(ours.size, steps=5120, **small),
        depth=dataclasses.replace(ours.depth, steps=10240, **small),
        schedule=("size", "depth", "size"),
    )
    monkeypatch.setitem(problem.PRESETS, "jaxspec", tiny)
    save_record(toy.make_record(texts=16), tmp_path / "record.npz")
    save_costs(toy.TIMES, tmp_path / "times.json")
    return ltd.LtdOptions(
        tmp_path / "record.npz", tmp_path / "times.json", tmp_path / "run", parallel=16
    )


def test_it_learns_and_resumes_to_the_same_policy(options, tmp_path, monkeypatch):
    results = ltd.train_ltd(options)
    speed = {name: figures["tokens_per_second"] for name, figures in results.items()}
    # Scores tell which rounds pay: no constant knows.
    assert speed["2-size"] > 1.1 * speed["static"]
    assert speed["2-size"] <= speed["oracle"] and speed["2-size"] > 0.9 * speed["oracle"]
    assert (options.run / "curves.png").stat().st_size > 10_000

    killed, calls = dataclasses.replace(options, run=tmp_path / "killed"), []
    real = ltd._validated

    def dies(*arguments):
        calls.append(1)
        if len(calls) == 14:
            raise KeyboardInterrupt
        return real(*arguments)

    monkeypatch.setattr(ltd, "_validated", dies)
    with pytest.raises(KeyboardInterrupt):
        ltd.train_ltd(killed)
    monkeypatch.setattr(ltd, "_validated", real)
    assert ltd.train_ltd(killed) == results == json.loads((killed.run / "results.json").read_text())
    first, second = load_policy(options.run / "policy"), load_policy(killed.run / "policy")
    jax.tree.map(np.testing.assert_array_equal, first, second)

    # What was saved decides as the run said.
    record = load_record(options.record)
    posed = problem.pose(record, ltd.load_costs(options.times), "jaxspec")
    seconds = posed.validation.round_seconds(posed.times)
    layers = {"depth": first.controls.depth, "size": first.controls.size}
    found = replay.walk(
        posed.validation,
        seconds,
        *replay.decisions(posed.validation, layers, posed.config, posed.absent),
    )
    assert found.figures(record)["tokens_per_second"] == pytest.approx(speed["2-size"], rel=1e-4)
    with pytest.raises(CheckpointError, match="was made with seed=0, not 1"):
        ltd.train_ltd(dataclasses.replace(options, seed=1))


def test_published_presets_run(options):
    for number, name in enumerate(("ltd-paper", "ltd-code")):
        preset = PRESETS[name]
        small = {"actor": (8,), "critic": (8,), "epochs": 1}
        tiny = {
            kind: dataclasses.replace(getattr(preset, kind), **small) for kind in ("size", "depth")
        }
        with pytest.MonkeyPatch.context() as patch:
            patch.setitem(
                problem.PRESETS,
                name,
                dataclasses.replace(
                    preset, **tiny, first_act=number + 1, schedule=("depth", "size")
                ),
            )
            changed = dataclasses.replace(
                options, preset=name, share=1e-4, run=options.run / str(number), fixed_rows=4
            )
            assert "1-size" in ltd.train_ltd(changed)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"fixed_rows": 3}, r"--fixed-rows, one of the recorded sizes \[2, 4\]"),
        ({"preset": "ltd-paper"}, r"fixed_rows is 61: .* record rounds with --preset ltd-paper"),
        ({"preset": "ltd-code"}, "decides after 3 draft steps, the record has 3: record with more"),
        ({"parallel": 7}, "parallel is 7: give a divisor of the rollout"),
    ],
)
def test_refusals(options, changes, message):
    with pytest.raises(ValueError, match=message):
        ltd.train_ltd(dataclasses.replace(options, **changes))


def test_one_option_trains_on_real_time(options, tmp_path, monkeypatch):
    """`--live FILE` alone: one episode at a time, whose rounds are decoded and timed."""
    record = load_record(options.record)
    # Eight rows, since trees of four have no room for three steps.
    header = record.header | {"model": "mini", "sizes": [2, 8], "max_new_tokens": 16, "chat": False}
    save_record(dataclasses.replace(record, header=header), options.record)
    about = toy.TIMES.about | {"model": "mini"}
    save_costs(dataclasses.replace(toy.TIMES, widths=(1, 2, 8), about=about), options.times)
    prompts = tmp_path / "prompts.jsonl"
    prompts.write_text(json.dumps({"prompt": [117, 142, 122, 64]}) + "\n")
    few = dataclasses.replace(problem.PRESETS["jaxspec"].size, steps=8, rollout=4, minibatch=4)
    tiny = dataclasses.replace(problem.PRESETS["jaxspec"], size=few, schedule=("size",))
    monkeypatch.setitem(problem.PRESETS, "jaxspec", tiny)
    timed, verify = [], Texts.verify

    def watch(self, steps, size):
        timed.append((steps, size, *verify(self, steps, size)))
        return timed[-1][2:]

    monkeypatch.setattr(Texts, "verify", watch)
    given = dataclasses.replace(options, live=prompts, parallel=None)
    assert "0-size" in ltd.train_ltd(given)
    # Eight rounds and the one that compiles, with real tokens and seconds.
    assert len(timed) == 9 and all(tokens >= 1 and seconds > 0 for *_, tokens, seconds in timed)


def test_the_live_task_is_the_replayed_one():
    params = jaxspec.load("mini", drafter="eagle3", dtype="float32")
    prompt = [117, 142, 122, 64, 240, 19]
    options = TextOptions(
        drafter="eagle3", prompts=Path(), width=3, steps=3, sizes=(2, 8), max_new_tokens=24, batch=1
    )
    found = record_texts(params, [prompt], options)
    size = np.ones((1, 4), np.int32)
    depth_task = make_live(make_depth_environment(3, 3, (1, 2), "throughput"), 3)
    size_task = make_live(
        make_size_environment("pool", 3, 3, (2, 8), found["scores"].shape[1], "acceptance"), 3
    )
    for task, decided, actions in (
        (depth_task, (size, None), (0, 0, 1, 0)),
        (size_task, (None, np.full(1, 2)), (1, 0)),
    ):
        texts = Texts(params, [prompt], options, lambda scores, context, decided=decided: decided)
        texts.new_text()
        state, now = task.reset(texts, jax.random.key(0), 1)
        at = steps = 0
        for turn in range(16):
            wanted = found["scores"][at].astype(np.float32)
            shown = now.observation[0, : 9 if task is depth_task else len(wanted)]
            steps = int(state.steps[0])
            if task is depth_task:
                wanted = (
                    wanted[3 + 9 * (steps - 1) : 3 + 9 * steps]
                    if steps
                    else np.pad(wanted[:3], (0, 6))
                )
            else:
                wanted = np.where(np.arange(len(wanted)) < 3 + 9 * steps, wanted, 0)
            np.testing.assert_allclose(shown, wanted, atol=2e-2, rtol=1e-3)
            action = jnp.array([actions[turn % len(actions)]], jnp.int32)
            state, now = task.step(texts, state, action, jax.random.key(turn), 0.0)
            if bool(now.ended[0]):
                chosen = 1 if task is depth_task else int(action[0])
                assert float(now.tokens[0]) == found["committed"][at, steps, chosen]
                assert now.seconds[0] > 0
                at += int(now.tokens[0])
                at = 0 if at >= len(found["context"]) else at
        assert at > 0 or turn == 15
