"""Costs follow the clock, and drafting stops while it does not pay."""

import numpy as np
import pytest

from jaxspec.serve.choice import DraftChoice, LiveCosts
from jaxspec.serve.costs import Costs

EDGES = (4, 8, 16)


def make_live(drafted=(2.0, 3.0, 4.0), plain=(1.0,)):
    return LiveCosts(Costs(drafted, plain), EDGES)


def test_costs_follow_the_times_of_visits():
    live = make_live()
    for _ in range(100):
        live.observe(True, np.asarray([8, 8, 8]), 18.0)
    assert live.drafted[:2] == pytest.approx([2.0, 6.0], rel=1e-3)
    assert live.drafted[2] >= live.drafted[1]  # more rows never cost less
    assert live.plain.tolist() == [1.0]
    live.observe(False, np.asarray([4]), 100.0)  # one visit corrects a little
    assert live.plain[0] == pytest.approx(2**0.1)
    live.observe(False, np.asarray([], int), 1.0)


def drafted_visits(choice, tokens, visits):
    """Run visits of three rounds of four slots that each emit `tokens`; count those that draft."""
    count = 0
    for _ in range(visits):
        if choice.wants_draft():
            count += 1
            choice.observe(np.full((4, 3), tokens), np.asarray([8, 8, 8]))
    return count


def test_drafting_goes_on_while_it_pays():
    # A drafted round takes three autoregressive ones, which give each slot a token.
    assert drafted_visits(DraftChoice(make_live()), 4, 300) == 300


def test_drafting_stops_when_it_does_not_pay_and_tries_again_ever_later():
    choice = DraftChoice(make_live())
    assert drafted_visits(choice, 2, 8 + 1) == 1
    assert 3 <= drafted_visits(choice, 2, 1000) <= 9
    # It comes back when drafts become good: a failure or more later.
    drafted_visits(choice, 5, 3000)
    assert drafted_visits(choice, 5, 100) == 100
