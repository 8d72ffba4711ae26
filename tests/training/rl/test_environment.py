"""The replay environment and walks over records, against plain Python."""

import dataclasses
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rl_toy as toy

from benchmarks.training import ltd_controls
from benchmarks.training.ltd_evaluate import EvaluateOptions, evaluate
from jaxspec.costs.files import load_costs, save_costs
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.learned.ltd import LtdConfig, make_ltd
from jaxspec.policies.learned.ltd_features import depth_observation, pool_size, size_observation
from jaxspec.policies.store import save_policy
from training.replay.records import load_record, save_record, split_records
from training.rl import problem, replay
from training.rl.environment import (
    Data,
    make_depth_environment,
    make_environment_replay,
    make_size_environment,
    reward_of,
)
from training.rl.presets import ROUNDS
from training.rl.record import RecordOptions
from training.run.command import parse_with_preset

RECORD = toy.make_record()
SECONDS = RECORD.round_seconds(toy.TIMES)


def test_times_are_those_of_compiled_widths():
    context, steps = np.array([0, 50, 900])[:, None, None], np.arange(3)[:, None]
    seconds = toy.TIMES.seconds(context, rows=(2, 3, 4), steps=steps)
    np.testing.assert_allclose(
        seconds[0], [[0.005, 0.01, 0.01], [0.006, 0.011, 0.011], [0.007, 0.012, 0.012]], rtol=1e-6
    )
    np.testing.assert_allclose(
        seconds[1, 1], [0.0075 + 0.0015, 0.015 + 0.0015, 0.015 + 0.0015], rtol=1e-6
    )
    np.testing.assert_allclose(seconds[2, 0], [0.01, 0.02, 0.02], rtol=1e-6)
    with pytest.raises(ValueError, match="costs reach 4 rows, not 8"):
        toy.TIMES.seconds(0, rows=8)


def test_files(tmp_path):
    save_record(RECORD, tmp_path / "a" / "record.npz")
    found = load_record(tmp_path / "a" / "record.npz")
    assert found.header == RECORD.header and (found.committed == RECORD.committed).all()
    save_costs(toy.TIMES, tmp_path / "times.json")
    np.testing.assert_array_equal(load_costs(tmp_path / "times.json").verify, toy.TIMES.verify)
    (tmp_path / "times.json").write_text("{}")
    with pytest.raises(ValueError, match="holds no table of round costs"):
        load_costs(tmp_path / "times.json")
    (tmp_path / "no.npz").write_text("no")
    with pytest.raises(ValueError, match="is no record of rounds"):
        load_record(tmp_path / "no.npz")


def test_the_split_takes_whole_prompts_of_every_domain():
    training, validation = split_records(RECORD, every=4)
    assert set(validation.prompt) == {6, 7} and set(training.prompt) == set(range(6))
    assert validation.first().tolist() == [0, toy.LENGTH]
    with pytest.raises(ValueError, match="cannot be split: record at least 9 prompts of a domain"):
        split_records(RECORD, every=9)


def walked(steps, sizes):
    """(rounds, seconds) of all texts."""
    rounds, seconds = 0, 0.0
    for start in RECORD.first():
        at, end = start, start + toy.LENGTH
        while at < end:
            d, v = int(steps[at]), int(sizes[at])
            rounds, seconds, at = (
                rounds + 1,
                seconds + float(SECONDS[at, d, v]),
                at + int(RECORD.committed[at, d, v]),
            )
    return rounds, seconds


def test_walks_grid_search_and_oracle():
    rng = np.random.default_rng(1)
    steps, sizes = rng.integers(0, 4, len(RECORD.context)), rng.integers(0, 2, len(RECORD.context))
    found = replay.walk(RECORD, SECONDS, steps, sizes)
    assert (found.rounds.sum(), pytest.approx(found.seconds.sum())) == walked(steps, sizes)
    constants = list(itertools.product(range(4), range(2)))
    taken = [walked(*(np.full(len(steps), x) for x in pair))[1] for pair in constants]
    assert replay.best_static(RECORD, SECONDS) == constants[int(np.argmin(taken))]
    best = walked(*replay.oracle(RECORD, SECONDS))[1]
    assert best < min(taken)
    assert best == pytest.approx(sum(fastest(start) for start in RECORD.first()))


def fastest(start: int) -> float:
    """Least seconds of a text, forwards from its first position."""
    left = np.full(toy.LENGTH + 1, np.inf)
    left[0] = 0.0
    for at in range(toy.LENGTH):
        for d, v in itertools.product(range(4), range(2)):
            to = at + RECORD.committed[start + at, d, v]
            left[to] = min(left[to], left[at] + SECONDS[start + at, d, v])
    return left[-1]


def test_the_depth_task_is_a_round_an_episode():
    environment = make_depth_environment(toy.WIDTH, toy.STEPS, (1, 2), "throughput", stale=True)
    size = np.ones(RECORD.committed.shape[:2], np.int32)
    data, key = (
        Data(make_environment_replay(RECORD, toy.TIMES), size=jnp.asarray(size)),
        jax.random.key(0),
    )
    state, now = environment.reset(data, key, 3)
    step = jax.jit(environment.step)
    rng, position, steps = (
        np.random.default_rng(0),
        np.asarray(state.position).copy(),
        np.zeros(3, int),
    )
    assert now.observation.shape == (3, environment.inputs) and set(position) <= set(RECORD.first())
    np.testing.assert_allclose(
        now.observation[:, :4], np.pad(RECORD.scores[position, :2], [(0, 0), (0, 2)])
    )
    for turn in range(12):
        assert now.weight.tolist() == [float(d in (1, 2)) for d in steps]
        np.testing.assert_allclose(now.observation[:, -1], steps / 10, rtol=1e-6)
        action = rng.integers(0, 2, 3)
        state, now = step(data, state, action, jax.random.fold_in(key, turn), 0.0)
        for i in range(3):
            goes = bool(action[i]) if steps[i] in (1, 2) else steps[i] < toy.STEPS
            assert bool(now.ended[i]) != goes
            if goes:
                steps[i] += 1
                first = toy.WIDTH + (steps[i] - 1) * 4
                np.testing.assert_allclose(
                    now.observation[i, :4], RECORD.scores[position[i], first : first + 4]
                )
                assert now.reward[i] == now.tokens[i] == 0
                continue
            tokens, seconds = (
                RECORD.committed[position[i], steps[i], 1],
                SECONDS[position[i], steps[i], 1],
            )
            assert float(now.reward[i]) == pytest.approx(tokens / (100 * seconds), rel=1e-5)
            # Before the next round's first step the reference still shows the last one's scores.
            first = toy.WIDTH + (steps[i] - 1) * 4
            shown = RECORD.scores[position[i], first : first + 4]
            np.testing.assert_allclose(now.observation[i, :4], shown)
            goes_on = tokens < RECORD.remaining[position[i]]
            assert not goes_on or int(state.position[i]) == position[i] + tokens
            assert goes_on or int(state.position[i]) in RECORD.first()
            position[i], steps[i] = int(state.position[i]), 0


def test_the_size_task_is_a_bandit():
    environment = make_size_environment(
        "pool", toy.WIDTH, toy.STEPS, toy.SIZES, RECORD.scores.shape[1], "renewal"
    )
    depth = np.where(np.arange(len(RECORD.context)) % 2, 2, -1).astype(np.int32)
    data, key = (
        Data(make_environment_replay(RECORD, toy.TIMES), depth=jnp.asarray(depth)),
        jax.random.key(1),
    )
    state, now = environment.reset(data, key, 64)
    drawn, jumps = set(), set()
    step = jax.jit(environment.step)
    for turn in range(40):
        position, steps = np.asarray(state.position), np.asarray(state.steps)
        assert (steps[position % 2 == 1] == 2).all()
        drawn |= set(steps[position % 2 == 0].tolist())
        known = toy.WIDTH + 4 * steps[0]
        np.testing.assert_array_equal(now.observation[0, known : RECORD.scores.shape[1]], 0)
        state, now = step(
            data, state, jnp.ones(64, jnp.int32), jax.random.fold_in(key, turn), 100.0
        )
        tokens, seconds = RECORD.committed[position, steps, 1], SECONDS[position, steps, 1]
        assert now.ended.all() and (now.weight == 1).all()
        jumps |= set((RECORD.prompt[np.asarray(state.position)] - RECORD.prompt[position]).tolist())
        np.testing.assert_allclose(now.reward, tokens - 100 * seconds, rtol=1e-4, atol=1e-5)
    assert drawn == {1, 2, 3}
    # A text that ends gives way to any other, not to the next.
    assert len(jumps) > 4


def test_rewards():
    given = (jnp.float32(4), jnp.float32(0.02), jnp.float32(100))
    found = [
        float(reward_of(kind, *given)) for kind in ("throughput", "acceptance", "time", "renewal")
    ]
    np.testing.assert_allclose(found, [2, 4, -2, 2], rtol=1e-5)


def test_evaluation(tmp_path):
    settings = LtdConfig((1, 2, 4), 2, 3, (0, 1, 2), (2, 4))
    # Goes on and verifies four rows where the root's best score is near 0, else stops at once with
    # two.
    depth = [{"kernel": jnp.zeros((32, 2)).at[0, 1].set(1.0), "bias": jnp.array([0.0, 3.0])}]
    size = [{"kernel": jnp.zeros((72, 2)).at[0, 1].set(1.0), "bias": jnp.array([0.0, 3.0])}]
    save_policy(make_ltd(settings, depth, size), tmp_path / "policy")
    save_record(RECORD, tmp_path / "record.npz")
    save_costs(toy.TIMES, tmp_path / "times.json")
    paths = [tmp_path / name for name in ("record.npz", "times.json", "policy", "record.npz")]
    results = evaluate(EvaluateOptions(*paths))
    assert set(results) == {"code", "math", "all"}
    found = {name: figures["tokens_per_second"] for name, figures in results["all"].items()}
    assert found["static"] < found["both policies"] <= found["oracle"]
    # The policy knows when; its controls act as it does on average.
    assert max(found["random control"], found["constant control"]) < found["both policies"]
    low, high = results["all"]["both policies"]["over_static"]
    assert low <= found["both policies"] / found["static"] <= high
    assert results["all"]["static"]["over_static"] == [1.0, 1.0]


def test_controls_act_as_often_as_the_policy():
    settings = LtdConfig((1, 2, 4), 2, 3, (0, 1, 2), (2, 4))
    depth = [{"kernel": jnp.zeros((32, 2)).at[0, 1].set(1.0), "bias": jnp.array([0.0, 3.0])}]
    policy = make_ltd(
        settings, depth, [{"kernel": jnp.zeros((72, 2)), "bias": jnp.array([0.0, 3.0])}]
    )
    steps, sizes = replay.decisions(RECORD, ltd_controls.layers_of(policy), settings, (0, 0))
    walk = replay.walk(RECORD, SECONDS, steps, sizes)
    found = ltd_controls.make_controls(RECORD, toy.TIMES, policy, (0, 0))
    assert (
        found.steps == {step: int(np.sum(walk.steps == step)) for step in np.unique(walk.steps)}
        and len(found.steps) > 1
    )
    assert found.sizes == {1: len(walk.sizes)} and found.commonest[0] == max(
        found.steps, key=found.steps.get
    )
    drawn, rows = found.drawn(4000)
    for step, rounds in found.steps.items():
        assert np.mean(drawn == step) == pytest.approx(rounds / len(walk.steps), abs=0.04)
    made = ltd_controls.policies_of(found, RECORD, settings.widths, (2, 0))
    assert (rows == 1).all() and made["random"].config.rows == (4,)
    assert (int(made["constant"].controls.steps), int(made["constant"].controls.rows)) == (
        found.commonest[0],
        4,
    )
    assert (int(made["static"].controls.steps), int(made["static"].controls.rows)) == (2, 2)


def test_given_rows_stand_for_a_size_policy_and_are_no_baseline():
    best = problem.pose(RECORD, toy.TIMES, "jaxspec")
    given = problem.pose(RECORD, toy.TIMES, "jaxspec", fixed_rows=2, observes="P+L")
    assert given.static == best.static == best.absent and best.static[1] == 1
    assert given.absent == (best.static[0], 0) and given.config.observes == "P+L"
    assert (problem.data_of(given, "depth", {}).size == 0).all() and (
        problem.data_of(best, "depth", {}).size == 1
    ).all()
    assert (
        problem.environment_of(given, "size").actions == 2
        and (problem.data_of(given, "size", {}).depth == -1).all()
    )


def test_the_published_rounds_and_their_first_depth_stage():
    """W = 10 and 12 steps: 1,210 candidates, 20 to 240 drafted tokens; the first depth stage has 60."""
    given = ["--drafter", "eagle3", "--prompts", "p", "--out", "o"]
    paper = parse_with_preset(RecordOptions, ROUNDS, ["--preset", "ltd-paper", *given])
    assert (paper.width, paper.steps, pool_size(paper.width, paper.steps)) == (10, 12, 1210)
    assert [size - 1 for size in paper.sizes] == list(range(20, 241, 20))
    plain = parse_with_preset(RecordOptions, ROUNDS, given)
    assert (plain.width, plain.steps) == (6, 9)
    # A record of these sizes, of which the toy has none of its own.
    header = RECORD.header | {"sizes": [21, 61]}
    record = dataclasses.replace(RECORD, header=header)
    times = make_costs(
        (1, 21, 61), (0, 100), 0.0, [[1, 1], [2, 2], [90, 90]], step=(1, 1), about=toy.TIMES.about
    )
    posed = problem.pose(record, times, "ltd-paper")
    assert posed.static[1] == 0 and record.sizes[posed.absent[1]] == 61
    assert posed.absent[0] == posed.static[0]
    assert problem.pose(record, times, "jaxspec").absent == posed.static
    with pytest.raises(ValueError, match="fixed_rows is 61: give --fixed-rows, one of"):
        problem.pose(RECORD, toy.TIMES, "ltd-paper")
    assert problem.pose(RECORD, toy.TIMES, "ltd-paper", schedule=("size",)).absent[1] == 1


def test_networks_have_the_hidden_layers_that_are_asked_for():
    given = {"fixed_rows": 2}
    preset = problem.pose(RECORD, toy.TIMES, "ltd-paper", size_actor=(8, 4), **given).preset
    assert preset.size.actor == (8, 4) and preset.depth == problem.PRESETS["ltd-paper"].depth
    preset = problem.pose(RECORD, toy.TIMES, "ltd-paper", depth_actor=(6,), **given).preset
    assert preset.depth.actor == (6,) and preset.size == problem.PRESETS["ltd-paper"].size


def test_records_and_policies_of_another_scale_are_refused(tmp_path):
    settings = LtdConfig((1, 2, 4), 2, 3, sizes=(2, 4), score_scale=0.25)
    with pytest.raises(ValueError, match=r"at scale 0.25, the record holds those at 1.0: .*0.25"):
        replay.choose_sizes(RECORD, [], settings)
    with pytest.raises(ValueError, match="at scale 0.25, the record holds those at 1.0"):
        replay.choose_depths(RECORD, [], settings)
    own = dataclasses.replace(RECORD, header=RECORD.header | {"score_scale": 0.25})
    assert problem.pose(own, toy.TIMES, "jaxspec").config.score_scale == 0.25
    save_record(own, tmp_path / "now.npz")
    assert load_record(tmp_path / "now.npz").header["score_scale"] == 0.25
    del own.header["score_scale"]
    save_record(own, tmp_path / "old.npz")
    with pytest.raises(ValueError, match="old.npz is from before .* record the rounds again with"):
        load_record(tmp_path / "old.npz")


@pytest.mark.thorough
def test_networks_see_what_they_are_shown():
    """The size policy would tell contexts apart by their length, and depths by their number."""
    scores, context = RECORD.scores[:8], jnp.arange(8) * 100
    for observes, told in (
        ("P", (0.0, 0.0)),
        ("P+L", (0.7, 0.0)),
        ("P+D", (0.0, 0.2)),
        ("P+D+L", (0.7, 0.2)),
    ):
        for seen, copies in (
            (depth_observation(scores, context, 2, toy.WIDTH, observes), 14),
            (size_observation(scores, context, 2, toy.WIDTH, observes), 29),
        ):
            length, depth = seen[7, -2 * copies : -copies], seen[7, -copies:]
            np.testing.assert_allclose(
                np.stack([length, depth], 1), np.tile(told, (copies, 1)), rtol=1e-6
            )
            assert seen[:, 0].any()
    layers = [{"kernel": jnp.zeros((72, 2)).at[-30, 1].set(1.0), "bias": jnp.array([0.35, 0.0])}]
    for observes, chosen in (("P+L", [0, 0, 0, 0, 1, 1, 1, 1]), ("P+D", [0] * 8)):
        settings = LtdConfig((1, 2, 4), 2, 3, sizes=(2, 4), observes=observes)
        assert replay.sizes_of(layers, scores, context, config=settings)[:, 2].tolist() == chosen
        task = make_size_environment(
            "pool", 2, 3, (2, 4), RECORD.scores.shape[1], "time", observes=observes
        )
        data = Data(
            make_environment_replay(RECORD, toy.TIMES), depth=jnp.full(len(RECORD.context), 2)
        )
        shown = task.reset(data, jax.random.key(0), 2)[1].observation
        assert shown[:, -30].any() == ("L" in observes) and shown[:, -1].any() == ("D" in observes)
