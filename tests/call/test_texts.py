"""One text of an answer from `decode`, `stream` and the serving engine, for every method."""

import dataclasses
from types import SimpleNamespace

import numpy as np
import pytest
import serve_toys
import tokenizer_toys as toys
from short_models import load_short

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.results import read_sequence
from jaxspec.call.session import prepare
from jaxspec.call.text.stops import Stops
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.serve import ServeRequest
from jaxspec.serve.checks import CheckedRequest
from jaxspec.serve.scheduling.tasks import Task

PROMPT, LONGEST = (100, 101, 102, 103), 14
SAMPLED = dict(temperature=1.0, ignore_eos=True)
# What the first tokens of an answer stand for. Later ones: of an alphabet that has everything.
SAID = ["▁Paris", *(f"<0x{byte:02X}>" for byte in "世界".encode())]
MORE = ["</s>", "▁", "<0x98>", "is", "<0xF0>", "▁is", "."]


def answer(params, seed):
    return jaxspec.decode(
        params, PROMPT, drafter="ar", max_new_tokens=LONGEST, seed=seed, **group_options(**SAMPLED)
    ).tokens


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    """A model, its byte-fallback tokenizer, the names of its tokens, and the seed of an answer."""
    params, first = load_short(), len(SAID)
    params = params.replace(spec=dataclasses.replace(params.spec, tokenizer=None))
    seed, tokens = next(
        (seed, tokens)
        for seed in range(100)
        if len(set((tokens := answer(params, seed))[:first])) == first
    )
    names = {token: f"▁was{token}" for token in PROMPT}
    for token, name in zip(dict.fromkeys(tokens), [*SAID, *MORE], strict=False):
        names[token] = name
    fast = toys.place("llama", names, params.spec.target.vocab_size)
    folder = toys.save(tmp_path_factory.mktemp("places") / "llama", fast)
    spec = dataclasses.replace(params.spec, tokenizer=str(folder))
    return params.replace(spec=spec), names, seed


def spell(names, tokens, special=b""):
    """The text after a prompt: the bytes of the tokens in a row; special ones are left out."""
    data = b""
    for name in (names.get(token, f"?{token}") for token in tokens):
        is_byte = name.startswith("<0x")
        data += bytes([int(name[3:5], 16)]) if is_byte else name.replace("▁", " ").encode()
    return data.replace(b"</s>", special).decode(errors="replace")


def expect(names, tokens, stop):
    """Cut an answer where the first stop string is complete: its tokens and its text.

    Those with the text of a special token read such tokens, though they are left out.
    """
    for count in range(1, len(tokens) + 1):
        before = []
        for one in stop:
            text = spell(names, tokens[:count], b"</s>" if "</s>" in one else b"")
            text = text.removesuffix("\N{REPLACEMENT CHARACTER}")
            before += [text[: text.find(one)].replace("</s>", "")] if one in text else []
        if before:
            return tokens[:count], min(before, key=len)
    return tokens, spell(names, tokens)


def collect(pieces):
    """Join a stream's pieces; return them with its output."""
    joined = ""
    while True:
        try:
            joined += next(pieces)
        except StopIteration as end:
            return joined, end.value


# The text of a special token that is no end of the model, alone, at an end and at a beginning.
BY_TOKEN = (("</s>",), ("界</s>",), ("zz", "</s> "), ("zz</s>", "界 "))


@pytest.mark.parametrize("stop", [(), ("s世",), ("界 ", "\N{REPLACEMENT CHARACTER}"), *BY_TOKEN])
@pytest.mark.parametrize("method", ["ar", "dflash"])
def test_whatever_cuts_an_answer(model, method, stop):
    """The limit at every token, within characters and after them, or a stop string."""
    params, names, seed = model
    tokens = answer(params, seed)
    options = dict(drafter=method, seed=seed, stop=stop, budget=8, **SAMPLED)
    for limit in range(1, LONGEST + 1):
        expected = expect(names, tokens[:limit], stop)
        out = jaxspec.decode(params, PROMPT, max_new_tokens=limit, **group_options(**options))
        assert (out.tokens, out.text) == expected
        if limit % 3 == 0:
            joined, out = collect(
                jaxspec.stream(params, PROMPT, max_new_tokens=limit, **group_options(**options))
            )
            assert (out.tokens, out.text) == expected and joined == out.text
    if not stop:
        assert [spell(names, tokens[:n]) for n in (1, 2, 3, 4, 6)] == [
            " Paris",
            " Paris�",
            " Paris�",
            " Paris世",
            " Paris世�",
        ]


def test_stop_strings_wait_for_the_least_number_of_tokens(model):
    """One that is complete before ends no text, one that is complete after it does."""
    params, names, seed = model
    tokens = answer(params, seed)
    text = spell(names, tokens)
    options = dict(seed=seed, budget=8, max_new_tokens=LONGEST, **SAMPLED)
    for least in (1, 4, 7):
        early = len(spell(names, tokens[:least]).removesuffix("\N{REPLACEMENT CHARACTER}"))
        stop = [text[: early - 1], text[early - 1 : early + 2]]
        cut = text.index(stop[1], early - 2)
        out = jaxspec.decode(
            params, PROMPT, stop=stop, **group_options(min_tokens=least, **options)
        )
        assert (out.text, out.stats.finish_reason) == (text[:cut], "stop")
        assert len(out.tokens) > least and out.tokens == tokens[: len(out.tokens)]
        joined, _ = collect(
            jaxspec.stream(params, PROMPT, stop=stop, **group_options(min_tokens=least, **options))
        )
        assert joined == out.text
        without = jaxspec.decode(
            params, PROMPT, stop=stop[:1], **group_options(min_tokens=least, **options)
        )
        assert without.tokens == tokens


@pytest.mark.thorough
def test_the_engine(model):
    """All limits and stop strings at once, in two slots."""
    params, names, seed = model
    tokens = answer(params, seed)
    cases = [(n, stop) for n in range(1, LONGEST + 1) for stop in ((), ("s世",), *BY_TOKEN)]
    engine = serve_toys.make(params)
    ids = [
        engine.submit(ServeRequest(PROMPT, max_new_tokens=n, stop=stop, seed=seed, **SAMPLED))
        for n, stop in cases
    ]
    texts, found = dict.fromkeys(ids, ""), dict.fromkeys(ids, ())
    while not engine.idle:
        for update in engine.visit():
            texts[update.id] += update.text
            found[update.id] += update.tokens
    for id, (count, stop) in zip(ids, cases, strict=True):
        assert (list(found[id]), texts[id]) == expect(names, tokens[:count], stop)


@pytest.mark.parametrize("stop", [(), ("s世",)])
@pytest.mark.parametrize("size", [1, 4])
def test_updates_of_the_engine(model, size, stop):
    """What its host makes of the tokens of a slot: rounds of some tokens each, and the end."""
    params, names, seed = model
    tokens, tokenizer = answer(params, seed), load_tokenizer(params.spec.tokenizer)
    request = ServeRequest(PROMPT, max_new_tokens=LONGEST, stop=stop)
    for limit in range(1, LONGEST + 1):
        expected = expect(names, tokens[:limit], stop)
        task = Task(
            1, CheckedRequest(request, list(PROMPT), (), Stops(stop), {}, 1), 0.0, tokenizer
        )
        text, start, finish = "", 0, None
        while finish is None:
            end = min(start + size, limit)
            drafted = [False] * (end - start)
            update = task.add(tokens[start:end], drafted, end == limit, broken=False, logprobs=[])
            text, start, finish = text + update.text, end, update.finish
        assert (task.tokens, text) == expected
    # Aborted within a character, it gives what it has.
    task = Task(1, CheckedRequest(request, list(PROMPT), (), Stops(stop), {}, 1), 0.0, tokenizer)
    text = task.add(tokens[:2], [False] * 2, False, broken=False, logprobs=[]).text
    assert text + task.end("abort").text == " Paris\N{REPLACEMENT CHARACTER}"


def test_sequences_of_a_batch_continue_their_own_prompts(model):
    """After special tokens alone, a text of its own begins: without a space."""
    params, names, seed = model
    tokenizer, tokens = load_tokenizer(params.spec.tokenizer), answer(params, seed)
    prompts = [list(PROMPT), list(tokenizer.eos)]
    session = SimpleNamespace(tokenizer=tokenizer, stop_strings=Stops(), prompt=prompts.__getitem__)
    state = SimpleNamespace(tokens=np.array([tokens, tokens]), emitted=np.array([4, 5]))
    assert [read_sequence(session, state, b)[1] for b in range(2)] == [" Paris世", "Paris世�"]


def test_half_surrogate_pairs_of_prompts_and_stops():
    """Read as U+FFFD; the stop string too, which a text of the model may hold."""
    params = load_short()
    chat = [{"role": "user", "content": "hi \ud83d there"}]
    found = [
        prepare(params, prompt, stop=("\ud83d x", 5))
        for prompt in ("hi \ud83d there", "hi \N{REPLACEMENT CHARACTER} there", chat)
    ]
    assert found[0].prompt(0) == found[1].prompt(0)
    assert {one.stop_strings for one in found} == {Stops(("\N{REPLACEMENT CHARACTER} x",))}
    assert "\N{REPLACEMENT CHARACTER}" in found[2].tokenizer.decode(found[2].prompt(0))
