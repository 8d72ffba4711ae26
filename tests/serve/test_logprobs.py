"""Log-probabilities of tokens are those of a plain forward pass of the target over the text."""

import numpy as np
import pytest
from serve_toys import PROMPT, SAMPLED, make, run, score
from short_models import load_short

from jaxspec.serve import ServeRequest, make_engine
from jaxspec.tuner.serving.costs import Costs


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture(scope="module")
def engine(mini):
    engine = make(mini)
    engine.warm_up()
    return engine


def check(params, request, tokens, logprobs):
    expected = score(params, request.tokens, tokens)
    assert len(logprobs) == len(tokens) == len(expected)
    for token, (own, top, rank), row in zip(tokens, logprobs, expected, strict=True):
        np.testing.assert_allclose(own, row[token], atol=2e-5)
        assert len(top) == request.logprobs
        best = np.sort(row)[::-1][: len(top)]
        np.testing.assert_allclose([value for _, value in top], best, atol=2e-5)
        np.testing.assert_allclose([row[id] for id, _ in top], best, atol=2e-5)
        assert len({id for id, _ in top}) == len(top)
        assert abs(rank - 1 - (row > row[token]).sum()) <= (np.abs(row - row[token]) < 4e-5).sum()


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", [None, "ar"])
def test_they_are_those_of_a_plain_forward_pass(mini, engine, sampling, method):
    request = ServeRequest(
        PROMPT, max_new_tokens=40, ignore_eos=True, drafter=method, logprobs=20, **sampling
    )
    ((tokens, logprobs, drafted, _),) = run(engine, request)
    assert any(drafted) == (method is None)
    check(mini, request, tokens, logprobs)
    if not sampling:
        assert [one.top[0][0] for one in logprobs] == tokens
        assert {one.rank for one in logprobs} == {1}


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_drafter_changes_nothing(engine, sampling):
    options = dict(max_new_tokens=40, ignore_eos=True, logprobs=5, **sampling)
    (drafted,) = run(engine, ServeRequest(PROMPT, **options))
    (plain,) = run(engine, ServeRequest(PROMPT, drafter="ar", **options))
    assert drafted[0] == plain[0]
    for one, other in zip(drafted[1], plain[1], strict=True):
        np.testing.assert_allclose(one.logprob, other.logprob, atol=2e-5)
        np.testing.assert_allclose([x for _, x in one.top], [x for _, x in other.top], atol=2e-5)


def test_visits_of_many_tokens(mini, engine):
    """They are ranked in several blocks, of which the last may overlap the one before."""
    request = ServeRequest(PROMPT, max_new_tokens=60, ignore_eos=True, logprobs=2)
    for tokens, logprobs, _, (most,) in run(engine, request, request):
        assert most > 8
        check(mini, request, tokens, logprobs)


def test_requests_side_by_side_get_what_each_asks_for(mini, engine):
    """More requests than slots, stop strings and sampling: neither order nor slots mix anything."""
    requests = [
        ServeRequest(PROMPT, max_new_tokens=24, logprobs=3),
        ServeRequest(PROMPT[:7], max_new_tokens=30, **SAMPLED),
        ServeRequest(PROMPT[3:], max_new_tokens=17, logprobs=0, **SAMPLED),
        ServeRequest(PROMPT[:9], max_new_tokens=60, logprobs=2, stop=("e",), ignore_eos=True),
    ]
    before = engine.counters()["compiles_after_warm_up"]
    results = run(engine, *requests)
    assert engine.counters()["compiles_after_warm_up"] == before
    for request, (tokens, logprobs, *_) in zip(requests, results, strict=True):
        if request.logprobs is None:
            assert logprobs == []
        else:
            check(mini, request, tokens, logprobs)


def test_an_autoregressive_engine(mini):
    costs = Costs((), (0.9,) * 3)
    engine = make_engine(
        mini, slots=1, capacity=192, drafter="ar", edges=(1,), costs=costs, max_logprobs=4
    )
    request = ServeRequest(PROMPT, max_new_tokens=10, logprobs=4)
    ((tokens, logprobs, *_),) = run(engine, request)
    check(mini, request, tokens, logprobs)


@pytest.mark.parametrize(
    ("most", "asked", "says"),
    [
        (0, 0, "make the engine with max_logprobs"),
        (5, 6, "logprobs is 6: give an integer from 0 to 5"),
        (5, True, "logprobs is True"),
    ],
)
def test_what_the_engine_cannot_give_is_refused(mini, most, asked, says):
    engine = make(mini, max_logprobs=most)
    for name in ("logprobs", "prompt_logprobs"):
        with pytest.raises(ValueError, match=says):
            engine.submit(ServeRequest(PROMPT, max_new_tokens=5, **{name: asked}))


def test_an_engine_without_them_keeps_nothing(mini):
    assert make(mini, max_logprobs=0)._device.state.hidden is None
    with pytest.raises(ValueError, match="max_logprobs is 21"):
        make(mini, max_logprobs=21)


LONG = tuple((PROMPT * 5)[:100])  # two chunks


def ask(engine, *requests):
    """Return {id: its updates}."""
    found = {engine.submit(one): [] for one in requests}
    while not engine.idle:
        for update in engine.visit():
            found[update.id].append(update)
    return list(found.values())


def check_prompt(params, request, updates):
    """The prompt's come once, before all tokens, from a pass that drew nothing."""
    given = [one.prompt_logprobs is not None for one in updates]
    assert given == [True] + [False] * (len(updates) - 1) and not updates[0].tokens
    first, *rest = request.tokens
    asked = ServeRequest((first,), logprobs=request.prompt_logprobs)
    check(params, asked, rest, updates[0].prompt_logprobs)


@pytest.mark.parametrize("method", [None, "ar"])
def test_those_of_a_prompt_are_those_of_a_plain_forward_pass(mini, engine, method):
    request = ServeRequest(LONG, max_new_tokens=9, drafter=method, logprobs=2, prompt_logprobs=20)
    plain = ServeRequest(LONG, max_new_tokens=9, drafter="ar")
    other = ServeRequest(PROMPT, max_new_tokens=30, ignore_eos=True)
    before = engine.counters()["compiles_after_warm_up"]
    own, others, expected = ask(engine, request, other, plain)
    assert engine.counters()["compiles_after_warm_up"] == before
    assert not any(any(one.drafted) for one in own) and any(any(one.drafted) for one in others)
    check_prompt(mini, request, own)
    tokens = sum((one.tokens for one in own), ())
    assert tokens == sum((one.tokens for one in expected), ())
    check(mini, request, tokens, sum((one.logprobs for one in own), ()))


def test_a_prompt_that_a_slot_holds_is_read_again(mini, engine):
    request = ServeRequest(LONG, max_new_tokens=1, prompt_logprobs=1)
    for _ in range(2):
        reused = engine.counters()["reused_tokens"]
        (updates,) = ask(engine, request)
        check_prompt(mini, request, updates)
        assert engine.counters()["reused_tokens"] == reused


def test_a_prompt_and_no_token(mini, engine):
    """It takes the slot for as long as its prompt is fed, and no round."""
    request = ServeRequest(LONG, max_new_tokens=0, prompt_logprobs=3)
    rounds = engine.counters()["slot_rounds"]
    for updates in ask(engine, request, request, request):
        check_prompt(mini, request, updates)
        (only,) = updates
        assert only.finish == "length" and not only.text
    assert engine.counters()["slot_rounds"] == rounds
    (after,) = ask(engine, ServeRequest(LONG, max_new_tokens=4))
    assert len(sum((one.tokens for one in after), ())) == 4


def test_a_prompt_of_one_token(engine):
    (updates,) = ask(engine, ServeRequest((50,), max_new_tokens=0, prompt_logprobs=1))
    assert [one.prompt_logprobs for one in updates] == [()]


def test_others_go_on_while_the_program_is_compiled(engine, monkeypatch):
    """It is compiled last, in the background."""
    compiler, has, ready = engine._compiler, engine._compiler.has, []
    monkeypatch.setattr(
        compiler, "has", lambda variant: bool(ready) if variant.name == "score" else has(variant)
    )
    waits = engine.submit(ServeRequest(LONG, max_new_tokens=0, prompt_logprobs=1))
    other = engine.submit(ServeRequest(PROMPT, max_new_tokens=4, ignore_eos=True))
    found = []
    while not any(one.finish for one in found):
        found += engine.visit()
    assert {one.id for one in found} == {other}
    assert not engine.visit() and not engine.idle
    ready.append(True)
    (update,) = engine.visit()
    assert update.id == waits and len(update.prompt_logprobs) == len(LONG) - 1


@pytest.mark.parametrize("new", [0, 5])
def test_a_prompt_on_which_the_model_fails(engine, monkeypatch, new):
    """Its slot is cleaned, so that the next request of it is answered."""
    device = engine._device
    table = device.params.target["params"]["embedding"]
    weights = device.params.target["params"] | {"embedding": table.at[9].set(np.nan)}
    target = device.params.target | {"params": weights}
    with monkeypatch.context() as patch:
        patch.setattr(device, "params", device.params.replace(target=target))
        broken = ServeRequest((50, 9, 60), max_new_tokens=new, prompt_logprobs=1)
        (updates,) = ask(engine, broken)
    assert [(one.finish, one.prompt_logprobs) for one in updates] == [("error", None)]
    for updates in ask(engine, *[ServeRequest((50, 60), max_new_tokens=3)] * 3):
        assert updates[-1].finish in ("length", "stop")


def test_no_tokens_are_for_those_who_ask_about_a_prompt(engine):
    with pytest.raises(ValueError, match="max_new_tokens is 0: give an integer at least 1"):
        engine.submit(ServeRequest(PROMPT, max_new_tokens=0))
