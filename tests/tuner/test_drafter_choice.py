"""The drafter of a call: the fastest so far; others are tried now and then."""

from __future__ import annotations

import gc

import jax.numpy as jnp
import pytest

from jaxspec.core.params import Params, Spec
from jaxspec.tuner.drafter_choice import REVISIT, DrafterTrials


@pytest.fixture
def trials():
    return DrafterTrials()


def make_params(*names: str) -> Params:
    spec = Spec(None, tuple((name, None) for name in names))
    return Params({}, {name: {"w": jnp.zeros(1)} for name in names}, spec)


def call(
    trials: DrafterTrials,
    params: Params,
    speeds: dict[str, float],
    batch: int = 1,
    greedy: bool = True,
) -> str:
    """Make a call of 100 tokens; returns the drafter that decoded it."""
    name = trials.choose(params, batch, greedy)
    trials.record(params, name, batch, greedy, 100, 100 / speeds[name])
    return name


def test_one_drafter_is_the_choice(trials):
    assert trials.choose(make_params("only"), 1, True) == "only"
    assert trials.choose(make_params(), 1, True) == "ar"


def test_each_is_tried_in_time_and_the_fastest_stays(trials):
    params, speeds = make_params("a", "b", "c"), {"a": 10.0, "b": 30.0, "c": 20.0}
    names = [call(trials, params, speeds) for _ in range(10 * REVISIT)]
    assert names[: REVISIT - 1] == ["a"] * (REVISIT - 1) and names[REVISIT - 1] == "b"
    assert names[2 * REVISIT - 1] == "c"
    later = names[2 * REVISIT :]
    assert set(later) == {"a", "b", "c"} and later.count("b") > 0.9 * len(later)


def test_only_those_named_are_tried(trials):
    params, speeds = make_params("a", "b", "c"), {"a": 10.0, "b": 30.0, "c": 20.0}
    call(trials, params, speeds)
    found = [trials.choose(params, 1, True, ("a", "c")) for _ in range(3 * REVISIT)]
    assert set(found) == {"a", "c"}
    assert trials.choose(params, 1, True, ("c",)) == "c"


def test_a_drafter_that_became_the_fastest_is_found(trials):
    params, speeds = make_params("a", "b"), {"a": 10.0, "b": 30.0}
    assert [call(trials, params, speeds) for _ in range(REVISIT + 3)][-3:] == ["b"] * 3
    speeds["a"] = 90.0
    assert [call(trials, params, speeds) for _ in range(8 * REVISIT)][-2] == "a"


def test_settings_and_weights_have_records_of_their_own(trials):
    params, speeds = make_params("a", "b"), {"a": 10.0, "b": 30.0}
    assert [call(trials, params, speeds) for _ in range(REVISIT + 1)][-2:] == ["b", "b"]
    assert (
        call(trials, params, speeds, greedy=False) == "a"
        and call(trials, params, speeds, batch=8) == "a"
    )
    assert call(trials, make_params("a", "b"), speeds) == "a"
    gc.collect()
    call(trials, make_params("a", "b"), speeds)
    assert len(trials) <= 4  # what was learned of lost weights is dropped


def test_a_call_without_rounds_teaches_nothing(trials):
    params = make_params("a", "b")
    trials.record(params, "a", 1, True, 0, 0.0)
    assert trials.choose(params, 1, True) == "a"


def test_a_steady_choice_is_the_first_whatever_the_speeds(trials):
    params, speeds = make_params("a", "b"), {"a": 10.0, "b": 30.0}
    for _ in range(REVISIT):
        call(trials, params, speeds)
    assert trials.choose(params, 1, True) == "b"
    assert trials.choose(params, 1, True, steady=True) == "a"
