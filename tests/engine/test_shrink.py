"""A batch shrinks as its sequences finish; tokens, statistics and traces are those of the whole."""

import jax
import numpy as np
import pytest
from slow_cases import slow_except

import jaxspec
from jaxspec.engine import finish
from jaxspec.engine.compilations import compilations
from jaxspec.engine.finish import run_to_end
from jaxspec.engine.session import prepare, run_prefill
from jaxspec.engine.shrink import SHARED, ShrinkingBatch, find_axes, take_sequences

PROMPTS = ["def add(a, b):\n    return", "The cat sat", "1 2 3 4 5 6", "A"]
# In this order they end after about 40, 5, 12 and 40 tokens.
SEEDED = dict(temperature=1.0, seed=3)
TREE = dict(method="dflash", budget=4)

pytestmark = pytest.mark.usefixtures("cache")


@pytest.fixture(scope="module")
def mini():
    return jaxspec.load("mini", drafter="dflash", dtype="float32")


@pytest.fixture
def sizes(monkeypatch):
    """The batch sizes that rounds ran with, in order."""
    found, run = [], finish.run

    def note(params, request, state, rounds, *, config):
        found.append(state.done.shape[0])
        return run(params, request, state, rounds, config=config)

    monkeypatch.setattr(finish, "run", note)
    return found


def with_limits(session, limits):
    return session.__class__(
        **vars(session) | {"request": session.request.replace(limit=np.asarray(limits, np.int32))}
    )


def finish_both(params, limits, trace=False, **options):
    """Run a batch whose sequences have limits of their own, whole and shrinking."""
    session = with_limits(prepare(params, PROMPTS, max_new_tokens=64, **options), limits)
    return [run_to_end(session, run_prefill(session), trace, shrink) for shrink in (False, True)]


def assert_same(whole, part):
    """Compare all that outputs are made of."""
    names = ("emitted", "done", "rounds")
    for name in names:
        np.testing.assert_array_equal(getattr(part.state, name), getattr(whole.state, name))
    for b, (tokens, rounds) in enumerate(zip(whole.state.emitted, whole.state.rounds, strict=True)):
        for name, end in (("tokens", tokens), ("round_emitted", rounds), ("round_drafted", rounds)):
            one, other = (np.asarray(getattr(x.state, name))[b, :end] for x in (part, whole))
            np.testing.assert_array_equal(one, other, err_msg=name)


CASES = slow_except([TREE], [TREE, TREE | SEEDED, dict(method="ar"), dict(method="ar") | SEEDED])


@pytest.mark.parametrize("options", CASES)
def test_tokens_and_statistics_are_those_of_the_whole_batch(mini, sizes, options):
    whole, part = finish_both(mini, [60, 3, 9, 30], ignore_eos=True, **options)
    assert_same(whole, part)
    assert sizes[0] == sizes[1] == 4 and sizes[-1] == 1 and 2 in sizes
    assert part.shrunk and not whole.shrunk and part.state.cache is None
