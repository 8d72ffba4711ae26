"""DSpark's schedule and threshold."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays
from observations import ask

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.state import Tree
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.protocol import Observation
from jaxspec.policies.rules.dspark import divide_rows, make_dspark, make_dspark_threshold

GOLDEN = arrays("dspark", "scheduler.npz")
PROMPT = [117, 142, 122, 64, 240, 19]
LIVE = jnp.ones(6, bool)


def make_chains(probability: np.ndarray, live=None) -> Observation:
    """An observation of chains whose tokens have these conditional probabilities [B, D]."""
    batch, depth = probability.shape
    with np.errstate(divide="ignore"):
        logprob = np.cumsum(np.log(probability), axis=1)
    logprob = np.concatenate([np.zeros((batch, 1)), logprob], axis=1).astype(np.float32)
    rows = np.broadcast_to(np.arange(depth + 1), logprob.shape)
    tree = Tree(rows, rows - 1, rows, None, logprob, np.sum(logprob > -np.inf, axis=1))
    live = np.ones(batch, bool) if live is None else np.array(live)
    return Observation(np.full(batch, 10), live, tree=tree)


@pytest.mark.parametrize("case", range(8))
@pytest.mark.parametrize("early_stop", [True, False])
def test_rows_are_divided_as_in_the_paper(case, early_stop):
    chance = jnp.float32(np.cumprod(GOLDEN["confidence"][case], axis=1))
    rate = jnp.float32(GOLDEN["sps"][case][1:])
    lengths, theta = jax.jit(divide_rows, static_argnums=3)(chance, LIVE, rate, early_stop)
    which = "early_stop" if early_stop else "global"
    np.testing.assert_array_equal(lengths, GOLDEN[f"lengths_{which}"][case])
    np.testing.assert_allclose(theta, GOLDEN[f"theta_{which}"][case], rtol=1e-6)


def test_the_global_rule_is_the_best_of_all_divisions():
    rng = np.random.default_rng(0)
    for _ in range(20):
        chance = np.cumprod(rng.uniform(0.1, 1, (3, 3)), axis=1).astype(np.float32)
        rate = (1 / np.sort(rng.uniform(0.5, 4, 12))).astype(np.float32)
        live = np.array([True, rng.random() < 0.5, True])
        lengths, theta = divide_rows(chance, live, rate, False)
        best = max(
            sum((1 + chance[i, :n].sum()) * live[i] for i, n in enumerate(chosen))
            * rate[sum((1 + n) * live[i] for i, n in enumerate(chosen)) - 1]
            for chosen in itertools.product(range(4), repeat=3)
        )
        assert theta == pytest.approx(best, rel=1e-5)
        assert lengths[1] == 0 or live[1]


def test_a_schedule_verifies_more_of_the_surer_chain():
    costs = make_costs(widths=(1, 2, 4), contexts=[16], draft=[0.2], verify=[[1.0], [1.1], [2.5]])
    seen = make_chains(np.array([[0.9, 0.9, 0.9], [0.4, 0.3, 0.2]]))
    chosen = ask(make_dspark(costs), "rows", seen)
    assert chosen[0] > chosen[1] >= 1
    alone = make_chains(np.array([[0.9, 0.9, 0.9], [0.9, 0.9, 0.9]]), live=[True, False])
    assert ask(make_dspark(costs), "rows", alone)[1] == 1


def test_a_threshold_ends_a_chain_at_its_first_doubtful_token():
    seen = make_chains(np.array([[0.9, 0.4, 0.9], [0.2, 0.9, 0.9], [0.9, 0.8, 0.0]]))
    assert ask(make_dspark_threshold(0.5), "rows", seen).tolist() == [2, 1, 3]
    assert ask(make_dspark_threshold(0.0), "rows", seen).tolist() == [4, 4, 4]


@pytest.mark.parametrize("wrong", [-0.1, 1.5, "much"])
def test_a_threshold_is_a_probability(wrong):
    with pytest.raises(ValueError, match="give a probability from 0 to 1"):
        make_dspark_threshold(wrong)


@pytest.mark.slow
def test_a_threshold_verifies_less_and_changes_nothing():
    params = jaxspec.load("mini", dtype="float32")
    how = dict(drafter="dflash", builder="chain", budget=6, max_new_tokens=24)
    plain = jaxspec.decode(params, PROMPT, drafter="ar", max_new_tokens=24)
    whole, less = (
        jaxspec.decode(
            params, PROMPT, **group_options(policy=make_dspark_threshold(threshold), **how)
        )
        for threshold in (0.0, 0.7)
    )
    assert whole.tokens == less.tokens == plain.tokens
    assert less.stats.drafted < whole.stats.drafted
    with pytest.raises(ValueError, match="reads a chain"):
        jaxspec.decode(
            params,
            PROMPT,
            **group_options(policy=make_dspark_threshold(0.5), **how | {"builder": "best_first"}),
        )
