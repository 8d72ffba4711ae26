"""What policies observe beyond scores, length and depth: found by hand, and used in training."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import rl_toy as toy

import jaxspec
from jaxspec.policies.learned import ltd_features as features
from jaxspec.policies.protocol import Policy
from jaxspec.round.stop_rule import Sources
from training.policies.labels import RecorderConfig
from training.replay.figures import find_figures
from training.replay.records import load_record, save_record
from training.rl import problem, replay
from training.rl.environment import Data, make_environment_replay
from training.rl.networks import init_actor_critic
from training.rl.options import TextOptions
from training.rl.record import record, record_texts

# Width 2: candidates 0 and 1 come from distribution 0, 2 and 3 from number 1, 4 and 5 from 2.
ENTROPY, HIDDEN = jnp.array([0.1, 0.2, 0.3]), jnp.array([[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]])


def test_figures_are_those_of_the_distributions_that_the_nodes_came_from():
    own = jnp.array([-1.0, -2.0, -9.0, -3.0, -4.0, -jnp.inf])
    found = find_figures(own, own, Sources(ENTROPY, None, HIDDEN), 2, 1)
    # After no step both nodes are of the root's; after one, the best two are numbers 3 and 4.
    np.testing.assert_allclose(found["entropy"], [[0.1, 0.1], [0.2, 0.3]])
    np.testing.assert_array_equal(found["hidden"], [HIDDEN[0], HIDDEN[1]])
    # The likeliest of them by what the policy reads may be another one.
    shown = own.at[4].set(-1.5)
    np.testing.assert_array_equal(
        find_figures(own, shown, Sources(hidden=HIDDEN), 2, 1)["hidden"], [HIDDEN[0], HIDDEN[2]]
    )
    # A level without nodes has no entropies.
    empty = own.at[2:].set(-jnp.inf)
    assert find_figures(empty, empty, Sources(ENTROPY), 2, 1)["entropy"][1].tolist() == [0, 0]


def with_figures():
    """A record whose entropy says the steps, and whose hidden state the position."""
    record = toy.make_record()
    count, steps = len(record.context), np.arange(toy.STEPS + 1)
    entropy = np.broadcast_to(steps[:, None], (count, toy.STEPS + 1, toy.WIDTH))
    hidden = np.broadcast_to(np.arange(count)[:, None, None], (count, toy.STEPS + 1, 3))
    return dataclasses.replace(
        record, entropy=entropy.astype(np.float16), hidden=hidden.astype(np.float16)
    )


@pytest.mark.parametrize(("observes", "more"), [("P+D+L+E", toy.WIDTH), ("P+D+L+H", 3)])
def test_environments_show_what_is_recorded(observes, more):
    posed = problem.pose(with_figures(), toy.TIMES, "jaxspec", observes=observes)
    assert posed.config.hidden == (3 if "H" in observes else 0)
    for kind, plain in (
        ("depth", features.depth_inputs(toy.WIDTH)),
        ("size", features.size_inputs(features.pool_size(toy.WIDTH, toy.STEPS))),
    ):
        task, data = problem.environment_of(posed, kind), problem.data_of(posed, kind, {})
        assert task.inputs == plain + more
        state, now = task.reset(data, jax.random.key(0), 4)
        assert now.observation.shape == (4, task.inputs)
        wanted = state.steps if "E" in observes else state.position
        shown = np.asarray(now.observation[:, plain:])
        recorded = np.asarray(wanted)[:, None]
        if "H" in observes:
            recorded = np.asarray(posed.training.hidden)[np.asarray(state.position), 0]
        np.testing.assert_array_equal(shown, np.broadcast_to(recorded, shown.shape))


def test_replayed_decisions_read_them():
    """A network that goes on while the first entropy is below 2 takes two steps everywhere."""
    posed = problem.pose(with_figures(), toy.TIMES, "jaxspec", observes="P+D+L+E")
    layers = init_actor_critic(jax.random.key(0), posed.config.depth_inputs(), 2, (), ())["actor"]
    kernel = jnp.zeros_like(layers[0]["kernel"]).at[-1, 0].set(1.0)
    layers = [{"kernel": kernel, "bias": jnp.array([0.0, 1.5])}]
    assert set(replay.choose_depths(posed.training, layers, posed.config)) == {2}
    sizes = jnp.zeros((posed.config.size_inputs(), 2)).at[-1, 1].set(1.0)
    chosen = replay.choose_sizes(
        posed.training, [{"kernel": sizes, "bias": jnp.array([1.5, 0.0])}], posed.config
    )
    assert chosen[0].tolist() == [0, 0, 1, 1]
    assert isinstance(make_environment_replay(posed.training, toy.TIMES), type(posed.replay))
    assert Data(posed.replay).replay.entropy.shape == posed.training.entropy.shape


def test_records_keep_them_only_if_they_are_there(tmp_path):
    for number, one in enumerate((toy.make_record(), with_figures())):
        path = tmp_path / f"{number}.npz"
        save_record(one, path)
        found = load_record(path)
        assert (found.hidden is None) == (number == 0)
        assert len(found.select([0]).arrays()) == len(one.arrays())
    with pytest.raises(ValueError, match="holds no hidden: record rounds with --keeps hidden"):
        problem.pose(toy.make_record(), toy.TIMES, "jaxspec", observes="P+D+L+H")


@pytest.mark.thorough
def test_records_hold_what_policies_see():
    """The first round of a decode, step by step, against the first position of the record."""
    params = jaxspec.load("mini", drafter="eagle3", dtype="float32")
    prompt, seen = [117, 142, 122, 64, 240, 19], []
    options = TextOptions(
        drafter="eagle3", prompts=Path(), width=3, steps=3, sizes=(2, 12), max_new_tokens=6,
        batch=1, keeps=("entropy", "hidden"),
    )  # fmt: skip
    found = record_texts(params, [prompt], options)
    policy = Policy(RecorderConfig(sink=seen.append), ())
    given = jaxspec.Speculation(builder="dynamic/w3", policy=policy, budget=12, depth=4)
    jaxspec.decode(params, [prompt], drafter="eagle3", speculation=given, max_new_tokens=2)
    jax.effects_barrier()
    assert [int(one.steps) for one in seen[:4]] == [0, 1, 2, 3]
    for taken, one in enumerate(seen[:4]):
        entropy, hidden = found["entropy"][0, taken], found["hidden"][0, taken]
        np.testing.assert_allclose(entropy, one.entropy[0], rtol=2e-3, atol=2e-3)
        best = int(np.argmax(one.frontier[0]))
        np.testing.assert_allclose(hidden, one.hidden[0, best], rtol=2e-2, atol=2e-2)
    assert found["hidden"].shape[2] == one.hidden.shape[-1]
    plain = record_texts(params, [prompt], dataclasses.replace(options, keeps=()))
    assert "hidden" not in plain and np.array_equal(plain["scores"], found["scores"])
    with pytest.raises(ValueError, match="which needs the pool of a dynamic tree"):
        record(dataclasses.replace(options, drafter="jetspec"))
