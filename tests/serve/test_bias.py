"""A logit bias is added before every draw, whether a drafter proposed the token or not."""

from types import SimpleNamespace

import jax.numpy as jnp
import numpy as np
import pytest
from serve_toys import PROMPT, SAMPLED, make, run, score
from short_models import load_short

from jaxspec.serve import ServeRequest
from jaxspec.serve.bias import BIASES, LogitBias
from jaxspec.serve.on_device import packed_rows


@pytest.fixture(scope="module")
def mini():
    return load_short()


@pytest.fixture(scope="module")
def engine(mini):
    return make(mini)


@pytest.fixture(scope="module")
def plain(mini, engine):
    ((tokens, *_),) = run(engine, ServeRequest(PROMPT, max_new_tokens=40, ignore_eos=True))
    return tokens


def test_greedy_text_is_the_argmax_of_biased_logits(mini, engine, plain):
    common = max(set(plain), key=plain.count)
    bias = ((common, -3.0), (plain[0], -100.0), (20, 2.5), (31, 1.0))
    options = dict(max_new_tokens=40, ignore_eos=True, logit_bias=bias)
    (drafted,) = run(engine, ServeRequest(PROMPT, **options))
    (single,) = run(engine, ServeRequest(PROMPT, drafter="ar", **options))
    expected = score(mini, PROMPT, drafted[0])
    for token, value in bias:
        expected[:, token] += value
    assert drafted[0] == single[0] == np.argmax(expected, axis=1).tolist()
    assert drafted[0] != plain and any(drafted[2])


def test_sampled_text_is_the_same_with_a_drafter(engine):
    options = dict(max_new_tokens=40, ignore_eos=True, **SAMPLED)
    bias = ((17, 4.0), (30, 4.0))
    (drafted,) = run(engine, ServeRequest(PROMPT, logit_bias=bias, **options))
    (single,) = run(engine, ServeRequest(PROMPT, logit_bias=bias, drafter="ar", **options))
    (without,) = run(engine, ServeRequest(PROMPT, **options))
    assert drafted[0] == single[0] != without[0]


def test_a_bias_can_leave_two_tokens_to_draw(engine):
    """The biases come before the filters, and as many as there may be count."""
    bias = tuple((id, 100.0) for id in (17, 300)) + tuple((id, -1.0) for id in range(400, 462))
    request = ServeRequest(PROMPT, max_new_tokens=40, temperature=2.0, top_k=3, logit_bias=bias)
    ((tokens, *_),) = run(engine, request)
    assert set(tokens) <= {17, 300}


def test_the_last_token_is_none_of_the_padding(mini, engine):
    last = mini.spec.target.vocab_size - 1
    request = ServeRequest(PROMPT, max_new_tokens=8, ignore_eos=True, logit_bias=((last, 100.0),))
    ((tokens, *_),) = run(engine, request)
    assert tokens == [last] * 8


def test_nobody_else_has_it_and_slots_forget_it(engine, plain):
    options = dict(max_new_tokens=40, ignore_eos=True)
    biased = ServeRequest(PROMPT, logit_bias=((33, 100.0),), **options)
    others = run(engine, biased, ServeRequest(PROMPT, **options), biased)
    assert [one[0] for one in others] == [[33] * 40, plain, [33] * 40]
    for tokens, *_ in run(engine, *[ServeRequest(PROMPT, **options)] * 2):
        assert tokens == plain


def test_log_probabilities_are_those_before_the_bias(mini, engine):
    request = ServeRequest(
        PROMPT, max_new_tokens=5, ignore_eos=True, logit_bias=((33, 100.0),), logprobs=1
    )
    ((tokens, logprobs, *_),) = run(engine, request)
    expected = score(mini, PROMPT, tokens)[:, 33]
    np.testing.assert_allclose([one.logprob for one in logprobs], expected, atol=2e-5)


@pytest.mark.parametrize(
    ("bias", "says"),
    [
        (((10**6, 1.0),), "a token of logit_bias is 1000000"),
        (((-1, 1.0),), "a token of logit_bias is -1"),
        (((5, float("nan")),), "give -100 to 100"),
        (((5, 101.0),), "give -100 to 100"),
        (((5, 1.0), (5, 2.0)), "none of them twice"),
        (tuple((id, 1.0) for id in range(65)), "at most 64"),
    ],
)
def test_a_bias_that_cannot_be_is_refused(mini, bias, says):
    with pytest.raises(ValueError, match=says):
        make(mini).submit(ServeRequest(PROMPT, max_new_tokens=5, logit_bias=bias))


@pytest.mark.parametrize("id", [-1, 5])
def test_sampling_is_traced_once(id, monkeypatch):
    """It is most of what the rounds of an engine compile, for each number of rows."""
    seen, adjusted = [], []

    def draw(logits, *rest):
        seen.append(logits.dtype)
        return jnp.zeros(logits.shape[0], jnp.int32)

    monkeypatch.setattr(packed_rows, "draw_rows", draw)
    sampling = SimpleNamespace(temperature=jnp.zeros(2))
    round = SimpleNamespace(
        config=SimpleNamespace(sampling=None), request=SimpleNamespace(sampling=sampling)
    )
    bias = LogitBias(jnp.full((2, BIASES), id), jnp.ones((2, BIASES)))
    slot = jnp.array([0, 1, 1])
    logits, adjusts = jnp.ones((3, 8), jnp.bfloat16), jnp.bool_(id > 0)

    def adjust(logits):
        adjusted.append(logits.dtype)
        return logits

    packed_rows._draw(round, logits, None, slot, slot, bias, adjusts, adjust)
    # Adjustments are traced once for CPUs and once for GPUs, of which one is compiled.
    assert seen == [jnp.float32] and adjusted == [jnp.float32] * 2
