"""Log-probabilities of tokens are those of a plain forward pass of the target over the text."""

import numpy as np
import pytest
from serve_toys import PROMPT, SAMPLED, make, run, score
from short_models import load_short

from jaxspec.serve import ServeRequest, make_engine
from jaxspec.serve.costs import Costs


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture(scope="module")
def engine(mini):
    engine = make(mini, max_logprobs=20)
    engine.warm_up()
    return engine


def check(params, request, tokens, logprobs):
    expected = score(params, request.tokens, tokens)
    assert len(logprobs) == len(tokens) == len(expected)
    for token, (own, top), row in zip(tokens, logprobs, expected, strict=True):
        np.testing.assert_allclose(own, row[token], atol=2e-5)
        assert len(top) == request.logprobs
        best = np.sort(row)[::-1][: len(top)]
        np.testing.assert_allclose([value for _, value in top], best, atol=2e-5)
        np.testing.assert_allclose([row[id] for id, _ in top], best, atol=2e-5)
        assert len({id for id, _ in top}) == len(top)


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("method", [None, "ar"])
def test_they_are_those_of_a_plain_forward_pass(mini, engine, sampling, method):
    request = ServeRequest(
        PROMPT, max_new_tokens=40, ignore_eos=True, method=method, logprobs=20, **sampling
    )
    ((tokens, logprobs, drafted, _),) = run(engine, request)
    assert any(drafted) == (method is None)
    check(mini, request, tokens, logprobs)
    if not sampling:
        assert [top[0][0] for _, top in logprobs] == tokens


@pytest.mark.parametrize("sampling", [{}, SAMPLED], ids=["greedy", "sampled"])
def test_a_drafter_changes_nothing(engine, sampling):
    options = dict(max_new_tokens=40, ignore_eos=True, logprobs=5, **sampling)
    (drafted,) = run(engine, ServeRequest(PROMPT, **options))
    (plain,) = run(engine, ServeRequest(PROMPT, method="ar", **options))
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
        mini, slots=1, capacity=192, method="ar", edges=(1,), costs=costs, max_logprobs=4
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
    with pytest.raises(ValueError, match=says):
        make(mini, max_logprobs=most).submit(ServeRequest(PROMPT, max_new_tokens=5, logprobs=asked))


def test_an_engine_without_them_keeps_nothing(mini):
    assert make(mini)._device.state.hidden is None
    with pytest.raises(ValueError, match="max_logprobs is 21"):
        make(mini, max_logprobs=21)
