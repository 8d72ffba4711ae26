"""Costs follow the clock, and visits are of the kind that gives more tokens a second."""

import numpy as np
import pytest

from jaxspec.tuner.serving.costs import Costs
from jaxspec.tuner.serving.draft_choice import DraftChoice
from jaxspec.tuner.serving.live_costs import LiveCosts

EDGES, PLAIN = (4, 8, 16), (4,)


def make_live(drafted=(2.0, 3.0, 4.0), plain=(1.0,)):
    return LiveCosts(Costs(drafted, plain), EDGES, PLAIN)


def test_costs_follow_the_times_of_visits():
    live = make_live()
    for _ in range(100):
        live.observe(True, np.asarray([8, 8, 8]), 18.0)
    assert live.drafted[:2] == pytest.approx([2.0, 6.0], rel=1e-3)
    assert live.drafted[2] >= live.drafted[1]  # more rows never cost less
    assert live.plain.tolist() == [1.0]
    live.observe(True, np.asarray([16]), 100.0)  # one visit corrects a little
    assert live.drafted[2] == pytest.approx(6.0 * 2**0.1, rel=1e-3)
    live.observe(True, np.asarray([], int), 1.0)


def test_a_cost_falls_below_stale_costs_of_fewer_rows():
    live = make_live()
    for _ in range(100):
        live.observe(True, np.asarray([16]), 1.5)
    assert live.drafted == pytest.approx([1.5, 1.5, 1.5], rel=1e-3)


def test_a_cost_that_was_not_seen_for_long_is_corrected_more():
    live = make_live()
    for _ in range(50):
        live.observe(True, np.asarray([8]), 3.0)
    live.observe(False, np.asarray([4]), 2.0)
    assert live.plain[0] == pytest.approx(2**0.5)


def test_times_that_are_not_those_of_the_rounds_alone_teach_nothing():
    live = make_live()
    live.observe(True, np.asarray([8]), None)
    live.observe(False, np.asarray([4]), 1.0)
    live.observe(True, np.asarray([8]), 6.0)  # absorbs what the plain round left
    assert live.drafted.tolist() == [2.0, 3.0, 4.0]
    live.observe(True, np.asarray([8]), 6.0)
    assert live.drafted[1] > 3.0


def test_guessed_costs_are_corrected_by_the_first_visits():
    """One of them stalls, which must not make all costs a hundred times what they are."""
    live = LiveCosts(Costs((2.0, 3.0, 4.0), (1.0,)), EDGES, PLAIN, guessed=True)
    for seconds in (200.0, 6.0):
        live.observe(True, np.asarray([4]), seconds)
        assert live.drafted.tolist() == [2.0, 3.0, 4.0]
    live.observe(True, np.asarray([4]), 5.0)
    assert live.drafted.tolist() == [6.0, 9.0, 12.0] and live.plain.tolist() == [1.0]


def test_the_time_of_a_visit_itself_is_not_that_of_its_rounds():
    live = LiveCosts(Costs((2.0, 3.0, 4.0), (1.0,), 0.5), EDGES, PLAIN)
    live.observe(True, np.asarray([8, 8]), 6.5)
    live.observe(False, np.asarray([4]), 1.5)
    assert live.drafted.tolist() == [2.0, 3.0, 4.0] and live.plain.tolist() == [1.0]


def observe(choice, drafts, tokens, rounds=1, seconds=None, busy=None):
    """Report a visit of four slots, of which drafted rounds emit `tokens` each; return what it
    returns.
    """
    emitted = np.full((4, rounds), tokens if drafts else 1)
    return choice.observe(drafts, emitted, np.full(rounds, 8 if drafts else 4), seconds, busy)


def test_while_the_drafter_rests_it_reads_new_requests_for_a_trial_only():
    choice = DraftChoice(make_live())
    assert choice.wants_followers() and choice.wants_drafts()
    # A round takes three plain ones and gives two: each loses a third. 36 lose twelve whole ones.
    assert [observe(choice, True, 2) for _ in range(36)] == [False] * 35 + [True]
    # Trials may take a fiftieth of the time, and this one lost 36 seconds.
    for _ in range(1800):
        assert not choice.wants_followers() and not choice.wants_drafts()
        assert not observe(choice, False, 1)
    assert choice.wants_followers() and choice.wants_drafts()
    # It waits until no request runs that the drafter has not read, however long.
    observe(choice, False, 1, rounds=50)
    assert choice.wants_followers() and choice.wants_drafts()
    run_visits(choice, 2, 13)
    assert not choice.wants_followers()


def test_the_more_a_round_loses_the_sooner_drafting_ends():
    # Each loses two thirds of three seconds; twelve rounds are 36.
    choice = DraftChoice(make_live())
    assert [observe(choice, True, 1) for _ in range(18)] == [False] * 17 + [True]
    assert choice._pause == pytest.approx(36 * 50)
    # A tenth of a second each.
    close = DraftChoice(make_live(drafted=(2.0, 3.0, 4.0), plain=(1.45,)))
    assert not any(observe(close, True, 2) for _ in range(340))
    assert any(observe(close, True, 2) for _ in range(40))

    even = DraftChoice(make_live(drafted=(2.0, 3.0, 4.0), plain=(1.5,)))
    assert not observe(even, True, 2)
    for _ in range(6):
        observe(even, True, 2)
    assert not observe(even, True, 2) and even._pays  # nothing lost, nothing gained


def test_a_trial_counts_what_its_visits_took_in_full():
    """The first one also reads what waited for the drafter, which costs tell nothing of.

    But a visit that stalls does not count in full.
    """
    choice = DraftChoice(make_live())
    assert not observe(choice, True, 2, seconds=5.0)  # three seconds lost, then one each
    assert [observe(choice, True, 2, seconds=3.0) for _ in range(33)] == [False] * 32 + [True]
    stalled = DraftChoice(make_live())
    assert not observe(stalled, True, 2, seconds=100.0)
    assert stalled._lost == pytest.approx(4.0)
    costs = LiveCosts(Costs((2.0, 3.0, 4.0), (1.0,), 0.5), EDGES, PLAIN)
    visited = DraftChoice(costs)
    observe(visited, True, 2, seconds=3.5)  # plain visits take as much beside their rounds
    assert visited._lost == pytest.approx(1.0)


def test_what_reading_prompts_for_a_trial_takes_counts_as_its_loss():
    choice = DraftChoice(make_live())
    while not observe(choice, True, 2, busy=3.0):  # nothing to compare with yet
        pass
    for _ in range(1800):
        assert not choice.wants_followers()
        observe(choice, False, 1, busy=1.2)  # prompts take a sixth of the time
    for _ in range(60):
        assert choice.wants_followers()
        observe(choice, False, 1, busy=1.6)  # the drafter reads them too
    while not observe(choice, True, 2, busy=3.0):
        pass
    # Sixty plain rounds lost 0.4 seconds each, 36 drafted ones 0.6: 45.6 seconds.
    assert choice._pause == pytest.approx(45.6 * 50, rel=0.01)


def test_a_trial_comes_whatever_the_last_one_lost():
    choice = DraftChoice(make_live(drafted=(20.0, 30.0, 40.0)))
    while not observe(choice, True, 1):
        pass
    waited = 0
    while not choice.wants_drafts():
        observe(choice, False, 1)
        waited += 1
    assert waited == 2048


def test_a_trial_that_gains_goes_on_until_drafting_pays():
    choice = DraftChoice(make_live())
    while not observe(choice, True, 1):  # what is known now speaks against drafting for long
        pass
    for _ in range(1800):
        observe(choice, False, 1)
    for _ in range(40):
        assert choice.wants_drafts() and not observe(choice, True, 4)
    assert choice._pays


def test_a_trial_begins_with_a_round_and_goes_on_with_more():
    choice = DraftChoice(make_live())
    assert choice.limit_rounds(False) is None
    limits = []
    while not choice._pays:
        limits.append(choice.limit_rounds(True))
        observe(choice, True, 4, rounds=limits[-1])
    assert limits == [1, 2, 4, 8] and choice.limit_rounds(True) is None


def test_drafting_that_stops_to_pay_rests():
    choice = DraftChoice(make_live())
    run_visits(choice, 4, 100)
    assert choice._pays
    for _ in range(60):
        if observe(choice, True, 1):
            break
    assert not choice._pays and not choice.wants_followers()


def pay(choice):
    """Run drafted rounds of four tokens a slot until drafting pays."""
    while not choice._pays:
        observe(choice, True, 4)


def test_plain_rounds_are_a_trial_only_when_one_is_due():
    """Some request that cannot draft makes them plain; they must not put the next trial off."""
    choice = DraftChoice(make_live())
    pay(choice)
    for _ in range(50):
        observe(choice, True, 4)
        observe(choice, False, 1)
    for _ in range(14):
        assert choice.wants_drafts()
        observe(choice, True, 4)
    assert not choice.wants_drafts()


def test_a_trial_of_plain_rounds_counts_what_drafts_would_have_given():
    choice = DraftChoice(make_live())
    pay(choice)
    for _ in range(64):
        observe(choice, True, 4)
    observe(choice, False, 1, rounds=2)  # four thirds of the tokens in the same time: 2/3 s lost
    waited = 0
    while choice.wants_drafts():
        observe(choice, True, 4)
        waited += 1
    assert waited == 128  # 33 seconds are 11 rounds of three: fewer than trials are apart
    observe(choice, False, 1, rounds=20)
    assert choice._pause == pytest.approx(20 / 3 * 50)


def test_a_change_brings_the_next_trial_forward():
    choice = DraftChoice(make_live())
    for _ in range(3):  # trials of drafting that change nothing
        while choice.wants_drafts():
            observe(choice, True, 1)
        while not choice.wants_drafts():
            observe(choice, False, 1, rounds=16)
    assert choice._between == 256
    pay(choice)
    assert choice._between == 64


def test_rounds_in_which_all_slots_broke_say_nothing():
    choice = DraftChoice(make_live())
    assert not choice.observe(True, np.zeros((4, 2), int), np.full(2, 8))
    assert choice._tokens == 0


def run_visits(choice, tokens, visits, live=None, took=(3.0, 1.0)):
    """Run visits of up to three rounds of four slots; drafted ones emit `tokens` for each slot.

    Args:
      live: costs that learn from the visits, if any do.
      took: true seconds of a drafted round, which has 8 rows, and of a plain one.

    Returns:
      Share of the rounds that drafted, and tokens per second of all.
    """
    drafted, total, emitted, seconds = 0, 0, 0.0, 0.0
    for _ in range(visits):
        drafts = choice.wants_drafts()
        rounds = min(3, choice.limit_rounds(drafts) or 3)
        drafted, total = drafted + rounds * drafts, total + rounds
        emitted += rounds * 4 * (tokens if drafts else 1)
        spent = rounds * (took[0] if drafts else took[1])
        seconds += spent
        if live is not None:
            live.observe(drafts, np.full(rounds, 8 if drafts else 4), spent)
        observe(choice, drafts, tokens, rounds, spent)
    return drafted / total, emitted / seconds


def test_drafting_goes_on_while_it_pays():
    # A drafted round takes three autoregressive ones, which give each slot a token.
    drafted, speed = run_visits(DraftChoice(make_live()), 4, 1000)
    assert drafted > 0.98 and speed > 0.98 * 4 * 4 / 3


def test_a_few_bad_rounds_do_not_end_what_pays():
    """Tokens of rounds vary: these give 1, 1, 1 and 10 in turns, and plain ones 3 in that time."""
    choice = DraftChoice(make_live())
    for _ in range(200):
        assert not any(observe(choice, True, tokens) for tokens in (1, 1, 1, 10))
    assert choice._pays


def test_drafting_stops_when_it_does_not_pay_and_is_tried_again():
    choice = DraftChoice(make_live())
    run_visits(choice, 2, 13)  # of one, two and three rounds
    assert not choice.wants_drafts()
    drafted, speed = run_visits(choice, 2, 1000)
    assert 0 < drafted < 0.015 and speed > 0.98 * 4
    # It comes back when drafts become good: a trial or more later.
    run_visits(choice, 5, 3000)
    assert run_visits(choice, 5, 100)[0] > 0.95


@pytest.mark.parametrize("tokens", [2, 4])
@pytest.mark.parametrize(
    ("drafted", "plain"),
    [
        ((2.0, 3.0, 4.0), (3.0,)),  # plain rounds were measured in a busy moment
        ((1.0, 1.0, 1.0), (1.0,)),  # drafted ones in a fast one
        ((9.0, 9.0, 9.0), (1.0,)),  # and in a slow one
        ((8.0, 12.0, 16.0), (4.0,)),  # the machine is faster than it was
    ],
)
def test_wrong_costs_do_not_mislead_for_long(tokens, drafted, plain):
    """Two drafted tokens do not pay, four do: a drafted round takes three plain ones."""
    live = make_live(drafted, plain)
    choice = DraftChoice(live)
    run_visits(choice, tokens, 600, live)
    share, speed = run_visits(choice, tokens, 600, live)
    assert speed > 0.97 * 4 * max(1, tokens / 3)
    assert (share > 0.5) == (tokens == 4)
