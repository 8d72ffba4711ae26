"""Penalties and a least number of tokens: each text is that of plain decoding, token by token."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from serve_toys import _logits
from short_models import load_short
from verify_trees import make_tree, stack

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.text.token_ids import number_sequences
from jaxspec.core.sampling.noise import gumbel, sequence_keys
from jaxspec.core.sampling.penalties import (
    count_generated,
    count_prompt,
    forbid,
    list_paths,
    penalise,
)
from jaxspec.core.sampling.settings import Penalties, make_sampling

PROMPTS = [list(b"def add(a, b):\n    return"), list(b"1 2 3 1 2 3")]
PENALTIES = dict(presence_penalty=0.6, frequency_penalty=0.35, repetition_penalty=1.3)
DRAFTED = dict(drafter="jetspec", builder="expand", budget=8)


@pytest.fixture(scope="module")
def mini():
    return load_short(None)


def brute_force(logits, prompt, tokens, presence=0.0, frequency=0.0, repetition=1.0):
    """Penalise one row [V] as transformers' RepetitionPenaltyLogitsProcessor and OpenAI say."""
    logits = np.asarray(logits, np.float32).copy()
    for token in {*prompt, *tokens}:
        score = logits[token]
        logits[token] = score * repetition if score < 0 else score / repetition
    for token in set(tokens):
        logits[token] -= frequency * tokens.count(token) + presence
    return logits


def plain_logits(params, prompt, tokens):
    """Logits of the target before each token of a text: float32 [tokens, V]."""
    text = np.zeros((1, 128), np.int32)
    end = len(prompt) + len(tokens)
    text[0, :end] = [*prompt, *tokens]
    return np.asarray(_logits(params.target, text, params.spec)[0, len(prompt) - 1 : end - 1])


def draw_again(params, prompt, tokens, noise=None, temperature=0.0, least=0, ends=(), **strengths):
    """Draw every token of a text again, each after those before it."""
    strengths = {name.removesuffix("_penalty"): value for name, value in strengths.items()}
    again = []
    for place, logits in enumerate(plain_logits(params, prompt, tokens)):
        row = brute_force(logits, prompt, tokens[:place], **strengths)
        if place < least:
            row[list(ends)] = -np.inf
        row = row if noise is None else row / temperature + noise[place]
        again.append(int(row.argmax()))
    return again


def noise_of(params, prompts, index, count, seed=0):
    keys = sequence_keys(seed, number_sequences(prompts))[index : index + 1]
    places = len(prompts[index]) + jnp.arange(count)[None]
    return np.asarray(gumbel(keys, places, params.spec.target.vocab_size)[0])


# --- One tree.


@pytest.mark.parametrize(
    "strengths",
    [PENALTIES, dict(repetition_penalty=0.7), dict(presence_penalty=-2.0, frequency_penalty=2.0)],
)
def test_each_row_has_the_tokens_of_its_own_path(strengths):
    rng, vocab, rows = np.random.default_rng(3), 7, 40
    prompts, made = [[1, 1, 5], [6]], [[2, 2, 0], [3, 5, 5]]
    trees, before = [], []
    for text in made:
        parents = [-1] + [int(rng.integers(max(0, i - 6), i)) for i in range(1, rows)]
        token = rng.integers(0, vocab, rows)
        token[0] = text[-1]
        trees.append(make_tree(token, parents, rows))
        paths = [[]]
        for row in range(1, rows):
            paths.append([*paths[parents[row]], int(token[row])])
        before.append([text + path for path in paths])
    tree = stack(trees)
    depth = int(tree.depth.max())
    assert depth > 5 and max(len(path) - len(set(path)) for path in sum(before, [])) > 3
    logits = rng.normal(size=(2, rows, vocab)).astype(np.float32) * 3
    penalties = make_sampling(**strengths)[1].penalties

    @jax.jit
    def run(logits, tree):
        padded = jnp.array([[1, 1, 5], [6, 2, 2]])
        counts = count_prompt(padded, jnp.array([3, 1]), vocab)
        counts = count_generated(counts, jnp.array([[2, 2, 0, 4], [3, 5, 5, 1]]), jnp.array([3, 3]))
        paths = list_paths(tree, depth)
        return penalise(logits, counts[:, None], paths, penalties), paths

    out, paths = run(logits, tree)
    names = {name.removesuffix("_penalty"): value for name, value in strengths.items()}
    for b, texts in enumerate(before):
        for row, text in enumerate(texts):
            expected = brute_force(logits[b, row], prompts[b], text, **names)
            np.testing.assert_allclose(out[b, row], expected, atol=1e-6)
            own = [token for token in paths[b, row].tolist() if token >= 0]
            assert own == text[len(made[b]) :]


def test_settings_of_one_sequence_leave_the_others_as_they_are():
    logits = jnp.asarray(np.random.default_rng(0).normal(size=(2, 3, 5)), jnp.float32)
    counts = jnp.array([[2, 4, 1, 0, 3]] * 2, jnp.int32)
    each = [jnp.array([[x], [y]]) for x, y in ((0.5, 0.0), (0.1, 0.0), (1.2, 1.0))]
    out = penalise(logits, counts[:, None], jnp.full((2, 3, 2), 4), Penalties(*each))
    np.testing.assert_array_equal(out[1], logits[1])
    assert not np.isclose(out[0], logits[0])[:, [0, 1, 2, 4]].any()


def test_forbidden_tokens_are_those_of_the_rows_that_ask():
    out = forbid(jnp.ones((2, 4)), jnp.array([1, -1, 9, 3]), jnp.array([True, False]))
    np.testing.assert_array_equal(np.isfinite(out), [[1, 0, 1, 0], [1, 1, 1, 1]])


def test_neutral_penalties_compile_nothing():
    spec, values = make_sampling(0.8, None, None, None, 0, 0.0, 1)
    assert (spec, values.penalties) == (make_sampling(0.8)[0], None)
    assert make_sampling(0.0, repetition_penalty=1.1)[0].penalties
    for extreme in (5e-324, 1e308):  # what is finite and above 0 stays so in float32
        assert 0 < make_sampling(0.0, repetition_penalty=extreme)[1].penalties.repetition < np.inf


@pytest.mark.parametrize(
    ("option", "says"),
    [
        (dict(presence_penalty=2.1), "presence_penalty must be from -2 to 2"),
        (dict(frequency_penalty=float("nan")), "frequency_penalty must be from -2 to 2"),
        (dict(repetition_penalty=0.0), "repetition_penalty must be finite and above 0"),
        (dict(repetition_penalty=float("inf")), "repetition_penalty must be finite and above 0"),
        (dict(repetition_penalty="1"), "repetition_penalty must be a number"),
    ],
)
def test_penalties_out_of_range_are_refused(option, says):
    with pytest.raises(ValueError, match=says):
        make_sampling(**option)


# --- Whole texts.


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.9, marks=pytest.mark.thorough)])
def test_texts_are_those_of_plain_decoding(mini, temperature):
    """Two prompts of a batch, against brute force and `ar`, in a tree and streamed."""
    options = dict(max_new_tokens=40, ignore_eos=True, temperature=temperature, seed=4)
    outs = jaxspec.decode(mini, PROMPTS, **group_options(**options, **PENALTIES, **DRAFTED))
    for index, (prompt, out) in enumerate(zip(PROMPTS, outs, strict=True)):
        noise = noise_of(mini, PROMPTS, index, 40, seed=4) if temperature else None
        again = draw_again(mini, prompt, out.tokens, noise, temperature, **PENALTIES)
        assert out.tokens == again
        assert out.stats.rounds < 39, "no draft was accepted"
    plain = jaxspec.decode(mini, PROMPTS[0], drafter="ar", **group_options(**options, **PENALTIES))
    without = jaxspec.decode(mini, PROMPTS[0], drafter="ar", **group_options(**options))
    assert plain.tokens == outs[0].tokens != without.tokens
    pieces = list(
        jaxspec.stream(mini, PROMPTS[0], **group_options(**options, **PENALTIES, **DRAFTED))
    )
    assert "".join(pieces) == plain.text


@pytest.mark.parametrize("name", PENALTIES)
def test_each_penalty_alone(mini, name):
    """They are numbers of one program: another value, or another penalty, compiles nothing."""
    options = dict(max_new_tokens=40, ignore_eos=True, **{name: 1.7})
    out = jaxspec.decode(mini, PROMPTS[0], **group_options(**options, **DRAFTED))
    assert out.tokens == draw_again(mini, PROMPTS[0], out.tokens, **{name: 1.7})


@pytest.mark.thorough
def test_the_default_mixes_lookup_and_stops_drafting(mini):
    options = dict(max_new_tokens=40, ignore_eos=True, presence_penalty=-1.5)
    plain = jaxspec.decode(mini, PROMPTS[1], drafter="ar", **group_options(**options))
    assert jaxspec.decode(mini, PROMPTS[1], **group_options(**options)).tokens == plain.tokens


@pytest.mark.thorough
def test_a_batch_shrinks_with_its_counts(mini):
    prompts = [*PROMPTS, PROMPTS[0][:9], PROMPTS[1][:3]]
    whole = jaxspec.decode(
        mini, prompts, drafter="ar", max_new_tokens=40, **group_options(**PENALTIES)
    )
    stop = [one.tokens[place] for one, place in zip(whole, (9, 14, 30), strict=False)]
    options = dict(max_new_tokens=40, stop=stop, min_tokens=5, **PENALTIES)
    outs = jaxspec.decode(mini, prompts, shrink=True, **group_options(**options, **DRAFTED))
    whole = jaxspec.decode(mini, prompts, drafter="ar", shrink=False, **group_options(**options))
    assert [one.tokens for one in outs] == [one.tokens for one in whole]
    assert len({len(one.tokens) for one in outs}) > 1


# --- A least number of tokens.


def text_without_ends(params, **options):
    return jaxspec.decode(
        params,
        PROMPTS[0],
        max_new_tokens=24,
        **group_options(ignore_eos=True, **options),
        drafter="ar",
    ).tokens


@pytest.mark.parametrize("temperature", [0.0, pytest.param(0.9, marks=pytest.mark.thorough)])
def test_end_tokens_are_not_drawn_before(mini, temperature):
    """Every draw is the best of the others; the first token that ends may end the text after it."""
    ends = tuple(dict.fromkeys(text_without_ends(mini, temperature=temperature)))[:2]
    options = dict(max_new_tokens=24, stop=ends, min_tokens=6, temperature=temperature)
    out = jaxspec.decode(mini, PROMPTS[0], **group_options(**options, **DRAFTED))
    noise = noise_of(mini, PROMPTS[:1], 0, len(out.tokens)) if temperature else None
    forbidden = (*ends, *mini.spec.eos)
    again = draw_again(mini, PROMPTS[0], out.tokens, noise, temperature, 6, forbidden)
    assert out.tokens == again and not {*ends} & {*out.tokens[:6]}
    short = jaxspec.decode(
        mini, PROMPTS[0], **group_options(**options | {"min_tokens": 0}, **DRAFTED)
    )
    assert len(short.tokens) == 1 and len(out.tokens) > 6


def test_each_row_knows_how_many_tokens_come_before_it(mini):
    """The first place at which an end token may be drawn is within a round."""
    tokens = text_without_ends(mini)
    firsts = [place for place, one in enumerate(tokens) if place and one not in tokens[:place]]
    for place in firsts[:8]:
        options = dict(max_new_tokens=24, stop=tokens[place], min_tokens=place)
        out = jaxspec.decode(mini, PROMPTS[0], **group_options(**options, **DRAFTED))
        assert out.tokens == tokens[: place + 1]
    assert len(firsts) > 7


@pytest.mark.thorough
def test_ends_of_the_model_count_even_if_they_are_ignored(mini):
    """As in vLLM."""
    end = text_without_ends(mini)[2]
    ending = mini.replace(spec=dataclasses.replace(mini.spec, eos=(end,)))
    options = dict(max_new_tokens=12, ignore_eos=True, min_tokens=4)
    out = jaxspec.decode(ending, PROMPTS[0], **group_options(**options, **DRAFTED))
    assert end not in out.tokens[:4] and len(out.tokens) == 12


def test_min_tokens_beyond_the_limit_is_refused(mini):
    with pytest.raises(ValueError, match="min_tokens is 9: give an integer from 0 to 8"):
        jaxspec.decode(mini, "x", max_new_tokens=8, sampling=jaxspec.Sampling(min_tokens=9))
