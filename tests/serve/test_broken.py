"""A slot whose values are not finite ends its request, and spoils nothing of others or of the next."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from serve_toys import make, run
from short_models import load_short

from jaxspec.core.state import Accepted
from jaxspec.serve import ServeRequest
from jaxspec.serve.on_device.calibration import calibrate, init_calibration, observe_rows

LONG = tuple(range(40, 140))  # more than a chunk
OPTIONS = dict(max_new_tokens=24, ignore_eos=True)
SHORT = [ServeRequest(tokens, **OPTIONS) for tokens in ((5, 6, 7), (8, 9, 10))]


@pytest.fixture(scope="module")
def engine():
    engine = make(load_short(), rounds=1)
    engine.warm_up()
    return engine


def poison(engine, slot, first=0):
    """Put NaN into all rows of a slot from `first` on, of the target, the drafter and its queue."""
    state, nan = engine._device.state, jnp.nan
    decode = state.decode

    def spoil(cache):
        k, v = jax.tree.map(lambda x: x.at[:, slot, :, first:].set(nan), (cache.k, cache.v))
        return cache.replace(k=k, v=v)

    pending = decode.pending.replace(features=decode.pending.features.at[slot].set(nan))
    decode = decode.replace(cache=spoil(decode.cache), draft=spoil(decode.draft), pending=pending)
    engine._device.state = state.replace(decode=decode)


def finish(engine):
    """Visit until nothing runs; return (tokens, finish) of each request by id."""
    found = {}
    while not engine.idle:
        for update in engine.visit():
            tokens, _ = found.get(update.id, ([], None))
            found[update.id] = tokens + list(update.tokens), update.finish
    return found


def is_clean(engine):
    """Whether no value of the slots is a NaN.

    Hidden states are those of one visit: the next one reads none that it has not written.
    """
    state = engine._device.state.replace(hidden=None)
    return not any(np.isnan(leaf).any() for leaf in jax.tree.leaves(state))


@pytest.mark.parametrize("slot", [0, 1])
@pytest.mark.parametrize("method", [None, "ar"])
def test_it_ends_with_an_error_and_others_go_on(engine, slot, method):
    request = ServeRequest(LONG, drafter=method, **OPTIONS)
    (alone, *_), *others = run(engine, request, *SHORT)
    texts = [tokens for tokens, *_ in others]
    ids = [engine.submit(request) for _ in range(2)]
    begun = {update.id: update for update in engine.visit()}
    poison(engine, slot)
    broken = engine._tasks[slot].id
    (other,) = {*ids} - {broken}
    found = finish(engine)
    assert found[broken] == ([], "error")
    assert list(begun[other].tokens) + found[other][0] == alone and found[other][1] == "length"
    # Nothing of the slot is used again, whether another prompt comes or the same.
    assert [one[0] for one in run(engine, *SHORT)] == texts
    again = run(engine, request, request)
    assert [one[0] for one in again] == [alone] * 2
    assert all(any(drafted) == (method is None) for _, _, drafted, _ in again)
    assert is_clean(engine)


def test_nothing_of_it_reaches_a_free_slot(engine):
    for one in SHORT:
        engine.submit(one)
    engine.visit()
    engine.cancel(engine._tasks[0].id)
    poison(engine, 1)
    broken = engine._tasks[1].id
    assert finish(engine)[broken][1] == "error"
    assert is_clean(engine)


def test_a_prompt_that_breaks_ends_before_its_first_token(engine):
    """The chunk that is fed attends to rows that are used again."""
    other = tuple(range(200, 330))
    ((alone, *_),) = run(engine, ServeRequest(other, **OPTIONS))
    slot = next(s for s in range(2) if engine._prefixes.count(s, other, reader=1))
    poison(engine, slot)
    id = engine.submit(ServeRequest(other, **OPTIONS))
    assert finish(engine)[id] == ([], "error")
    again = run(engine, *[ServeRequest(other, **OPTIONS)] * 2)
    assert [one[0] for one in again] == [alone] * 2


def test_a_prompt_may_break_while_others_decode(engine):
    first = engine.submit(ServeRequest((5, 6, 7), max_new_tokens=30, ignore_eos=True))
    engine.visit()
    second = engine.submit(ServeRequest(tuple(range(5, 205)), **OPTIONS))
    engine.visit()
    (slot,) = (slot for slot, task in engine._tasks.items() if task.id == second)
    assert not engine._tasks[slot].decodes
    poison(engine, slot)
    assert {update.id: update.finish for update in engine.visit()} == {first: None, second: "error"}
    assert finish(engine)[first][1] == "length"
    assert not np.isnan(engine._device.state.decode.cache.v[0]).any()


def test_rows_behind_those_used_again_are_clean(engine):
    """NaN that no mask lets in still counts: a weight of zero times NaN is NaN."""
    prompt = tuple(range(300, 400))
    first = run(engine, ServeRequest(prompt, **OPTIONS))
    slot = next(s for s in range(2) if engine._prefixes.count(s, prompt, reader=1))
    state = engine._device.state
    draft = state.decode.draft
    k, v = jax.tree.map(lambda x: x.at[:, slot, :, 64:].set(jnp.nan), (draft.k, draft.v))
    decode = state.decode.replace(draft=draft.replace(k=k, v=v))
    engine._device.state = state.replace(decode=decode)
    before = engine.counters()["reused_tokens"]
    second = run(engine, ServeRequest(prompt, **OPTIONS))
    assert engine.counters()["reused_tokens"] == before + 64
    assert second[0][0] == first[0][0] and any(second[0][2])


def test_a_drafter_that_is_not_finite_spoils_no_figures(tree_of):
    tree = tree_of([[0.0, np.nan, np.nan], [0.0, -0.5, -1.0]])
    path = Accepted(jnp.zeros((2, 3), jnp.int32), jnp.ones(2, jnp.int32), jnp.zeros(2, jnp.int32))
    known = init_calibration(2, 3)
    assert np.isfinite(calibrate(tree, known)).all()
    known = observe_rows(tree, path, jnp.ones(2, bool), known)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(known)) and known.expected[1] > 0


@pytest.fixture
def tree_of():
    from jaxspec.core.state import Tree

    def make_tree(logprob):
        logprob = jnp.asarray(logprob, jnp.float32)
        zeros = jnp.zeros(logprob.shape, jnp.int32)
        depth, size = zeros + jnp.arange(logprob.shape[1]), jnp.full(logprob.shape[0], 3)
        return Tree(zeros, zeros, depth, zeros[..., None], logprob, size)

    return make_tree
