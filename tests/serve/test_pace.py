"""A visit has as many rounds and chunks as fit into its time."""

import pytest

from jaxspec.serve.scheduling.pace import Pace


def test_rounds_fill_the_time_of_a_visit():
    pace = Pace(0.05, 16)
    assert pace.rounds(True, hurry=False) == 1  # until the time of a round is known
    pace.observe(True, 2, 0.02)
    pace.observe(False, 4, 0.008)
    assert pace.rounds(True, hurry=False) == 5 and pace.rounds(False, hurry=False) == 16
    assert pace.rounds(True, hurry=True) == 2 and pace.rounds(False, hurry=True) == 12
    pace.observe(True, 0, 1.0)
    for _ in range(50):
        pace.observe(True, 1, 0.2)
    assert pace.rounds(True, hurry=False) == 1


def test_chunks_fill_it_too():
    pace = Pace(0.05, 16)
    assert pace.chunks() == 1
    pace.observe_feed(3, 0.03)
    assert pace.chunks() == 5
    pace.observe_feed(0, 1.0)
    assert pace.chunks() == 5


@pytest.mark.parametrize(("hurry", "rounds"), [(False, 8), (True, 4)])
def test_without_a_time_visits_have_as_many_rounds_as_they_may(hurry, rounds):
    pace = Pace(None, 8)
    pace.observe(True, 1, 100.0)
    pace.observe_feed(1, 1e-6)
    assert pace.rounds(True, hurry) == rounds and pace.chunks() == 1
    assert Pace(None, 1).rounds(True, hurry) == 1
