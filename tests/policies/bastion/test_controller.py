"""The controller's decisions, on trees and times made up for the purpose."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.bench.measure.methods import parse_methods
from jaxspec.core.state import Accepted, Tree
from jaxspec.core.tree import ancestor_words, keep_rows, root_only
from jaxspec.costs.roofline_fit import correct_running
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import (
    choose_size,
    decide_draft,
    make_bastion,
    observe_round,
)
from jaxspec.policies.bastion.controller_state import init_controller
from jaxspec.policies.bastion.pauses import (
    GUESS_ROUNDS,
    LEAST_DEVIATION,
    LONGEST_PAUSE,
    MEMORY,
    RULE,
    PauseRule,
    count_pause,
    drafting_pays,
    init_pauses,
    record_gain,
    resume_pauses,
)
from jaxspec.policies.named import make_named
from jaxspec.policies.protocol import Observation, Outcome

ROWS, WIDTHS = 6, (1, 2, 4, 6)
TABLE = make_costs(WIDTHS, (0, 100), (1.0, 1.0), [[10, 20], [11, 21], [12, 22], [16, 26]])
LIVE = jnp.array([True, True])


def chain(probability) -> Tree:
    """A batch of chains whose nodes have these conditional probabilities [B, N - 1]."""
    logprob = np.concatenate(
        [np.zeros((len(probability), 1)), np.cumsum(np.log(probability), 1)], 1
    ).astype(np.float32)
    row = np.tile(np.arange(ROWS), (len(probability), 1))
    words = jax.vmap(ancestor_words)(jnp.asarray(row - 1))
    return Tree(
        *map(jnp.asarray, (row, row - 1, row)),
        words,
        jnp.asarray(logprob),
        jnp.full(len(row), ROWS),
    )


def decide(policy, state, tree, context=0, live=LIVE) -> int:
    return int(
        choose_size(
            policy.config,
            policy.controls,
            state,
            Observation(jnp.full(len(live), context), live, tree=tree),
        )
    )


def after(policy, state, tree, count=1, context=(0, 0), live=LIVE, drafted=True):
    """The state after a round that verified this tree and committed `count` tokens."""
    path = jnp.tile(jnp.arange(ROWS), (2, 1))
    accepted = Accepted(path, jnp.full(2, count), jnp.zeros(2, jnp.int32))
    steps = jnp.int32(0)
    outcome = Outcome(
        jnp.bool_(drafted), tree.size, steps, tree, accepted, jnp.asarray(context), live
    )
    return observe_round(policy.config, policy.controls, state, outcome)


def test_the_size_is_the_arg_max_over_what_buckets_cost():
    policy, state = make_bastion(TABLE, corrected=False), init_controller(ROWS - 1, ROWS)
    tree = chain([[0.9, 0.8, 0.5, 0.05, 0.01]] * 2)
    rows = decide(policy, state, tree)
    worth = 2 * np.cumsum([1, 0.9, 0.72, 0.36, 0.018, 0.00018])
    cost = 1 + np.array([10, 11, 12, 12, 16, 16])
    assert rows == 1 + int(np.argmax(worth / cost)) == 4
    cut = keep_rows(tree, jnp.full(2, rows))
    seen = after(policy, state, cut)
    np.testing.assert_allclose((seen.worth, seen.predicted), (worth[3], cost[3]), rtol=1e-5)
    # The factor is that of verification; drafting takes what the costs say.
    slower = policy.replace(controls=policy.controls.replace(factor=jnp.float32(2)))
    np.testing.assert_allclose(after(slower, state, cut).predicted, 1 + 2 * 12, rtol=1e-5)


def test_the_running_correction_is_bastions():
    """After each verification c <- 0.8 c + 0.2 observed / predicted, by hand and by its formula."""
    policy = make_bastion(TABLE, ema=0.2)
    before = init_controller(ROWS - 1, ROWS).replace(predicted=jnp.float32(5))
    factors, took, drafting, predicted = [], [14.0, 11.0, 32.0], 2.0, [10.0, 10.0, 20.0]
    for seconds, model in zip(took, predicted, strict=True):
        step = drafting + policy.controls.factor * model
        after = before.replace(predicted=before.predicted + step, rounds=before.rounds + 1)
        after = after.replace(last=jnp.array([drafting, model]))
        controls = policy.config.observe_seconds(policy.controls, before, after, seconds)
        policy = policy.replace(controls=controls)
        factors.append(float(policy.controls.factor))
    # 0.8 + 0.2 * 12 / 10, 0.8 * 1.04 + 0.2 * 9 / 10, 0.8 * 1.012 + 0.2 * 30 / 20
    np.testing.assert_allclose(factors, [1.04, 1.012, 1.1096], rtol=1e-6)
    observed = [seconds - drafting for seconds in took]
    np.testing.assert_allclose(factors, correct_running(observed, predicted, 0.2), rtol=1e-6)
    nothing = policy.config.observe_seconds(policy.controls, before, before, 3.0)
    several = before.replace(predicted=before.predicted + 5, rounds=before.rounds + 2)
    several = policy.config.observe_seconds(policy.controls, before, several, 3.0)
    assert float(nothing.factor) == float(several.factor) == factors[-1]
    with pytest.raises(ValueError, match="ema is 1.5: give a weight from 0"):
        make_bastion(TABLE, ema=1.5)


def test_names_say_which_rule_and_whether_it_is_corrected():
    for name, rule, ema in (
        ("bastion-paper", "bastion-paper", 0.0),
        ("bastion-paper+ema", "bastion-paper", 0.2),
        ("best+ema", "best", 0.2),
    ):
        policy = make_named(name, lambda: TABLE)
        assert (policy.config.rule, policy.config.each_round) == (rule, ema > 0)
        assert float(policy.controls.ema) == pytest.approx(ema)
    method = parse_methods("jetspec-best_first@6/bastion-paper+ema", budget=8)[1]
    assert method.options["policy"] == "bastion-paper+ema" and method.options["budget"] == 6


def test_fitted_costs_are_read_row_by_row():
    """A width that is compiled for 6 rows costs 3 rows what the curve says of 3 rows."""
    curve = make_costs(
        range(1, 7), (0,), (0.0,), [[1.0 + 0.1 * n] for n in range(6)], compiled=(6,)
    )
    policy, state = make_bastion(curve, "bastion-first-decrease"), init_controller(ROWS - 1, ROWS)
    assert policy.config.widths == (6,)
    tree = chain([[0.9, 0.8, 0.1, 0.05, 0.01]] * 2)
    # Ratios of one sequence: 1, 1.9 / 1.1, 2.62 / 1.2, 2.692 / 1.3: three rows.
    assert decide(policy, state, tree) == 3
    cut = keep_rows(tree, jnp.full(2, 3))
    np.testing.assert_allclose(after(policy, state, cut).predicted, 1.2, rtol=1e-6)


def test_finished_sequences_do_not_vote_and_the_longest_context_is_charged():
    policy, state = make_bastion(TABLE, corrected=False), init_controller(ROWS - 1, ROWS)
    tree = chain([[0.99] * 5, [0.01] * 5])
    assert decide(policy, state, tree, live=jnp.array([True, False])) == 6
    assert decide(policy, state, tree, live=jnp.array([False, True])) == 1
    plain, context = root_only(jnp.zeros(2, jnp.int32), ROWS), (50, 0)
    assert float(after(policy, state, plain, context=context, drafted=False).predicted) == 15.0
    second = after(
        policy, state, plain, context=context, live=jnp.array([False, True]), drafted=False
    )
    assert float(second.predicted) == 10.0 and float(second.worth) == 1.0


def test_rules_by_name():
    state, tree = init_controller(ROWS - 1, ROWS), chain([[0.9, 0.8, 0.5, 0.05, 0.01]] * 2)
    # One more row costs nothing from 3 to 4: the first decrease is where a bucket begins.
    stairs = make_costs(WIDTHS, (0,), (0.0,), [[1.0], [2.5], [2.6], [9.0]])
    # The printed algorithm drafts a node at least, and does not count the root: one node for the
    # time of one row has 3.8 tokens a second, two for that of two rows have 5.24 / 2.5.
    assert decide(make_bastion(stairs, "bastion-paper"), state, tree) == 2
    assert decide(make_bastion(stairs, "bastion-first-decrease"), state, tree) == 1
    assert decide(make_bastion(stairs, "best", corrected=False), state, tree) == 4
    assert decide(make_bastion(stairs, rows=3), state, tree) == 3
    assert decide(make_bastion(stairs, "bastion-code", corrected=False), state, tree) == ROWS
    with pytest.raises(
        ValueError,
        match="unknown rule 'worst': choose one of best, bastion-paper, bastion-first-decrease, ",
    ):
        make_bastion(stairs, "worst")
    paper, ours = make_bastion(stairs, "bastion-paper").config, make_bastion(stairs).config
    assert not (paper.corrected or paper.pauses) and ours.corrected and ours.pauses


def make_step(policy):
    """A round in which drafting commits so many tokens a sequence: (state, tokens) to the next
    state and whether it drafted.
    """
    tree = chain([[0.9, 0.8, 0.5, 0.05, 0.01]] * 2)
    seen = Observation(jnp.zeros(2, jnp.int32), LIVE, tree=tree)

    @jax.jit
    def step(state, committed):
        did = decide_draft(policy.config, policy.controls, state, seen)
        cut = keep_rows(
            tree, jnp.broadcast_to(choose_size(policy.config, policy.controls, state, seen), 2)
        )
        verified = jax.tree.map(
            lambda a, b: jnp.where(did, a, b), cut, root_only(tree.token[:, 0], ROWS)
        )
        return after(policy, state, verified, jnp.where(did, committed, 1), drafted=did), did

    return step


def play(step, state, committed: int, rounds: int):
    """Rounds of `step`; returns the state and which of them drafted."""
    drafted = []
    for _ in range(rounds):
        state, did = step(state, jnp.int32(committed))
        drafted.append(bool(did))
    return state, drafted


# A drafted round of four rows takes 2.7 times as long as one of plain decoding.
DEAR = make_costs(WIDTHS, (0,), (16.0,), [[10], [10], [11], [16]])


def begin(policy, state=None):
    """The state at the start of a text."""
    state = init_controller(ROWS - 1, ROWS) if state is None else state
    return policy.config.functions().resume(state)


def test_a_drafter_that_does_not_pay_is_paused_and_comes_back():
    policy = make_bastion(DEAR, corrected=False)
    step = make_step(policy)
    state, drafted = play(step, begin(policy), 1, 600)
    # Each drafted round loses 1.7 tokens. A text may lose its stake and its share, and what the
    # last trial loses.
    assert drafted[:2] == [True, False] and sum(drafted) >= 2
    assert 1.7 * sum(drafted) <= RULE.stake + 600 * RULE.share + 1.7

    state, drafted = play(step, state, 5, LONGEST_PAUSE + 40)
    assert all(drafted[drafted.index(True) :]) and drafted[-1]
    # A long good time is forgotten within some rounds.
    state, drafted = play(step, state, 1, 60)
    assert 2 <= drafted.index(False) <= 20 and sum(drafted[20:]) <= 10

    step = make_step(make_bastion(DEAR, pauses=False))
    never, drafted = play(step, begin(policy), 1, 50)
    assert all(drafted) and float(never.pauses.allowance) == RULE.stake


def test_another_text_may_suit_the_drafter_better():
    """A hopeless drafter is seldom tried in many short texts, and one good text brings it back."""
    policy = make_bastion(DEAR, corrected=False)
    step, state, trials = make_step(policy), init_controller(ROWS - 1, ROWS), []
    for _ in range(40):
        state, drafted = play(step, begin(policy, state), 1, 24)
        trials.append(sum(drafted))
    assert trials[0] == 1 and max(trials) == 1 and 2 <= sum(trials[4:]) <= 10
    for _ in range(40):
        state, drafted = play(step, begin(policy, state), 5, 24)
    assert all(drafted)


def test_a_new_text_begins_with_the_usual_gain():
    """Neither its allowance nor its own difference is that of the text before."""
    for allowance in (-7.0, 0.0, 50.0):
        state = init_pauses(4).replace(
            usual=jnp.float32(-0.3), usual_variance=jnp.float32(0.125), covariance=jnp.float32(0.1)
        )
        state = state.replace(own=jnp.float32(2), allowance=jnp.float32(allowance))
        begun = resume_pauses(state)
        assert (float(begun.allowance), float(begun.own)) == (RULE.stake, 0)
        assert (float(begun.own_variance), float(begun.covariance)) == (RULE.spread, 0)
        assert begun.usual == state.usual and begun.usual_variance == state.usual_variance


@pytest.mark.parametrize(
    ("gains", "variances", "allowance", "pays"),
    [
        ((0.5, -0.5), (0.0, 0.0, 0.0), -9.0, True),
        ((-0.1, -0.3), (0.5, 0.1, 0.2), 0.1, True),
        ((-0.1, -0.3), (0.5, 0.1, 0.2), 0.0, False),
        ((-0.1, -0.5), (0.5, 0.1, 0.2), 9.0, False),
    ],
)
def test_a_trial_needs_doubt_and_an_allowance(gains, variances, allowance, pays):
    """The estimate's deviation is 0.5 tokens in the last three cases."""
    rule = PauseRule(optimism=1.0)
    state = init_pauses(4).replace(usual=gains[0], own=gains[1], allowance=allowance)
    state = state.replace(variance=jnp.float32(0.25))
    names = ("usual_variance", "own_variance", "covariance")
    state = state.replace(**dict(zip(names, variances, strict=True)))
    assert bool(drafting_pays(state, rule)) == pays


def test_a_pause_forgets_the_text_and_wins_the_allowance_back():
    rule = PauseRule(memory=2.0, drift=0.5, share=0.25, spread=1.0)
    state = init_pauses(4, rule).replace(own=jnp.float32(-4), covariance=jnp.float32(-0.5))
    for _ in range(2):
        state = count_pause(state, rule)
    assert (float(state.own), float(state.covariance)) == (-1.0, -0.125)
    # A variance of 0 tends to the spread of texts, and the usual gain drifts.
    assert (float(state.own_variance), float(state.usual_variance)) == (1 - 1 / 16, 2.0)
    assert (float(state.allowance), float(state.usual)) == (0.5, 0.0)


@pytest.mark.parametrize(("longest", "spread"), [(4, 0.5), (16, 3.0)])
def test_the_estimate_is_a_kalman_filter_of_two_parts(longest, spread):
    """Against running moments and the filter in matrices in NumPy, over two texts."""
    gains = np.random.default_rng(0).normal(0.4 * spread, spread, 40)
    keep = 1 - 1 / RULE.memory
    moved, noise = np.diag([1, keep]), np.diag([RULE.drift, (1 - keep**2) * RULE.spread])
    estimate, covariance = np.zeros(2), np.diag([RULE.doubt, RULE.spread])
    mean, variance, seen = 0.0, min((longest - 1) / 6, 1.5) ** 2, GUESS_ROUNDS
    state, record = resume_pauses(init_pauses(longest)), jax.jit(record_gain)
    for number, gained in enumerate(gains):
        if number == 15:
            state, estimate = resume_pauses(state), estimate * [1, 0]
            covariance = np.diag([covariance[0, 0], RULE.spread])
        seen = min(seen + 1, MEMORY)
        off = gained - mean
        mean += off / seen
        variance = (1 - 1 / seen) * (variance + off**2 / seen)
        estimate, covariance = moved @ estimate, moved @ covariance @ moved.T + noise
        gain = covariance.sum(1) / (covariance.sum() + 1)
        estimate = estimate + gain * (gained - estimate.sum())
        covariance = covariance - np.outer(gain, covariance.sum(0))
        state = record(state, jnp.float32(gained))
        np.testing.assert_allclose((state.usual, state.own), estimate, rtol=1e-3, atol=1e-6)
        found = (state.usual_variance, state.own_variance, state.covariance)
        np.testing.assert_allclose(found, covariance[[0, 1, 0], [0, 1, 1]], rtol=1e-3, atol=1e-6)
    np.testing.assert_allclose((state.mean, state.variance), (mean, variance), rtol=1e-4)
    np.testing.assert_allclose(np.sqrt(state.variance), spread, rtol=0.3)
    allowance = RULE.stake + gains[15:].sum() + RULE.share * len(gains[15:])
    np.testing.assert_allclose(state.allowance, allowance, rtol=1e-4)


def test_gains_that_never_vary_have_the_least_deviation():
    state = init_pauses(4).replace(variance=jnp.float32(0), allowance=jnp.float32(1))
    for gain, pays in ((-0.9, True), (-1.1, False)):
        usual = jnp.float32(gain * LEAST_DEVIATION * RULE.optimism * RULE.doubt**0.5)
        assert bool(drafting_pays(state.replace(usual=usual))) == pays


def test_however_poor_a_drafter_was_its_pause_is_limited():
    state = record_gain(resume_pauses(init_pauses(4)), jnp.float32(-50))
    state, paused = state.replace(allowance=jnp.float32(1)), 0
    while not drafting_pays(state):
        state, paused = count_pause(state), paused + 1
        assert paused <= LONGEST_PAUSE
    assert paused > 64


def test_a_few_rounds_of_bad_luck_are_no_reason():
    policy = make_bastion(DEAR, corrected=False)
    step, state = make_step(policy), begin(policy)
    for committed, rounds in ((6, 1), (1, 2), (6, 2), (1, 2), (6, 2)):
        state, drafted = play(step, state, committed, rounds)
        assert all(drafted)


def test_counts_of_a_round():
    policy = make_bastion(TABLE, rows=3)
    state, drafted = play(make_step(policy), init_controller(ROWS - 1, ROWS), 2, 20)
    assert (
        state.sizes.tolist() == [0, 0, 0, 20, 0, 0, 0]
        and int(state.rounds) == int(state.drafted) == 20
    )
    np.testing.assert_allclose(state.predicted, 20 * 13, rtol=1e-5)
    # Of two nodes in each tree the first was accepted: its correction has grown, that of the second
    # has fallen.
    np.testing.assert_allclose(
        state.scores.hits.sum(1)[:3] / state.scores.count.sum(1)[:3], [1, 0, np.nan], atol=1e-6
    )
    assert float(state.scores.ratio[0, 0]) > 1 > float(state.scores.ratio[1, 0])


def test_counting_is_no_scatter():
    """On a CPU XLA makes a loop of a scatter, in every round."""
    policy, tree = make_bastion(TABLE, rows=3), chain([[0.5] * (ROWS - 1)] * 2)
    counted = jax.make_jaxpr(lambda state: after(policy, state, tree).sizes)
    assert "scatter" not in str(counted(init_controller(ROWS - 1, ROWS)))
