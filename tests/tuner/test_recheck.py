"""Costs that decodes do not show are checked now and then, by rounds that commit tokens."""

from __future__ import annotations

import numpy as np
import pytest
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare, run_prefill
from jaxspec.costs.round_costs import make_costs
from jaxspec.tuner import recheck
from jaxspec.tuner.recheck import LIMIT, WEIGHT, choose_kinds, correct_ratio
from jaxspec.tuner.timed_rounds import PLAIN, count_rounds
from jaxspec.tuner.tuner import tune

WIDTHS = (1, 4, 8, 16)
COSTS = make_costs(WIDTHS, (64.0,), 0.5, [[2.0], [3.0], [4.0], [6.0]]).by_rows()
PROMPT = "def add(a, b):\n    return"


pytestmark = pytest.mark.usefixtures("cache")


def counted(**counts):
    sizes = np.zeros(WIDTHS[-1] + 1, int)
    for name, count in counts.items():
        sizes[int(name[1:])] = count
    return sizes


def test_every_other_check_is_of_autoregressive_rounds():
    sizes = counted(n0=5, n6=9, n16=2)  # six rows cost what eight do
    chosen = [choose_kinds(sizes, WIDTHS, turn) for turn in range(6)]
    assert chosen == [(8, other) for other in (PLAIN, 4, PLAIN, 16, PLAIN, 4)]


def test_autoregressive_rounds_are_compared_with_all_others_in_turn():
    chosen = [choose_kinds(counted(n0=9, n8=3), WIDTHS, turn) for turn in range(4)]
    assert chosen == [(PLAIN, 4), (PLAIN, 8), (PLAIN, 16), (PLAIN, 4)]


def test_where_one_width_is_compiled_there_is_one_comparison():
    assert choose_kinds(np.array([1, 0, 5]), (1, 2), 1) == (2, PLAIN)
    assert choose_kinds(np.array([7, 0, 5]), (1, 2), 1) == (PLAIN, 2)


def test_the_ratio_moves_halfway():
    """A round of 8 rows costs 4.5; autoregressive rounds are said to cost 2, and take a third."""
    after = correct_ratio(COSTS, 8, PLAIN, 1 / 3)
    middle = 2.0 * (1.5 / 2.0) ** WEIGHT
    np.testing.assert_allclose(after.rounds()[:, 0], [middle, 2.5, 3.5, 4.5, 6.5], rtol=1e-5)


def test_one_check_changes_little():
    after = correct_ratio(COSTS, PLAIN, 16, 1000.0)
    np.testing.assert_allclose(after.rounds()[-1, 0], 6.5 * np.exp(LIMIT), rtol=1e-5)


def test_short_rounds_are_timed_more_often():
    assert [count_rounds(seconds) for seconds in (1e-4, 0.01, 0.5)] == [8, 3, 2]


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_checks_change_no_text(mini, monkeypatch, temperature):
    """Autoregressive rounds that seem dear are found to be cheap; the rounds commit tokens."""
    monkeypatch.setattr(recheck, "FIRST", 1)
    checks = []
    time_rounds = recheck.time_rounds

    def time_cheaply(session, request, state, kind, count, compiles):
        state, _, rounds = time_rounds(session, request, state, kind, count, compiles)
        checks.append((kind, rounds))
        return state, (0.001 if kind == PLAIN else 1.0) * count, rounds

    monkeypatch.setattr(recheck, "time_rounds", time_cheaply)
    corrected, correct = [], recheck.correct_ratio

    def note_correction(costs, *rest):
        corrected.append((costs.widths, costs.rounds(), correct(costs, *rest).rounds()))
        return correct(costs, *rest)

    monkeypatch.setattr(recheck, "correct_ratio", note_correction)
    options = dict(temperature=temperature, max_new_tokens=120, seed=1, ignore_eos=True)
    plain = jaxspec.decode(mini, PROMPT, drafter="ar", **group_options(**options))
    before = jaxspec.decode(mini, PROMPT, **group_options(**options))
    assert not checks  # a new policy has nothing to compare yet
    after = jaxspec.decode(mini, PROMPT, **group_options(**options))
    assert plain.tokens == before.tokens == after.tokens
    assert checks[0] == (PLAIN, 0) and len(checks) == 3 and all(rounds for _, rounds in checks[1:])
    assert after.stats.rounds >= sum(rounds for _, rounds in checks)
    (rows,) = {kind for kind, _ in checks} - {PLAIN}
    # The decode's own time, which nobody knows, corrects them too.
    ((widths, one, other),) = corrected
    place = 1 + widths.index(rows)
    assert other[0] / other[place] < one[0] / one[place]


@pytest.mark.slow
@pytest.mark.parametrize("tokens", slow_except([3], [60, 3]))
def test_forced_rounds_do_not_decide_whether_to_draft(mini, tokens):
    """Neither where the check is complete, nor where the text ends in it."""
    session, hooks = tune(
        prepare(mini, PROMPT, max_new_tokens=tokens, sampling=jaxspec.Sampling(ignore_eos=True))
    )
    state = run_prefill(session)
    before = np.asarray(state.control.pauses.usual)
    _, state = recheck._check(
        session, state, PLAIN, session.config.budget, hooks.timing_compilation
    )
    assert int(state.control.drafted) > 0
    assert float(state.control.pauses.usual) == before


@pytest.mark.thorough
def test_a_text_that_ends_in_a_check_corrects_nothing(mini, monkeypatch):
    jaxspec.decode(mini, PROMPT, max_new_tokens=24)
    monkeypatch.setattr(recheck, "FIRST", 1)
    monkeypatch.setattr(recheck, "correct_ratio", lambda *arguments: pytest.fail("corrected"))
    out = jaxspec.decode(mini, PROMPT, max_new_tokens=3)
    assert out.tokens == jaxspec.decode(mini, PROMPT, drafter="ar", max_new_tokens=3).tokens


def test_traces_hold_every_round(mini, monkeypatch):
    monkeypatch.setattr(recheck, "FIRST", 0)
    jaxspec.decode(mini, PROMPT, max_new_tokens=24)
    out = jaxspec.decode(mini, PROMPT, max_new_tokens=24, trace=True)
    assert len(out.rounds) == out.stats.rounds
