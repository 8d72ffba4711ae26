"""Log-probabilities in OpenAI's shapes, with the official client and a fake engine."""

import pytest
from fake_engine import ByteTokenizer, expected_tokens, rank

from jaxspec.serve.requests import ServeRequest, TokenLogprob

openai = pytest.importorskip("openai")
http_server = pytest.importorskip("http_server")
logprobs = pytest.importorskip("jaxspec.serve.http.logprobs")
generation = pytest.importorskip("jaxspec.serve.http.generation")

MESSAGES = [{"role": "user", "content": "Hi"}]
DECODE = ByteTokenizer().decode
EURO = list("€".encode())  # three bytes, so three tokens


@pytest.fixture(scope="module")
def client():
    with (
        http_server.running() as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key="none", max_retries=0) as one,
    ):
        yield one


def ask_chat(client, **more):
    given = {"temperature": 0} | more
    return client.chat.completions.create(model="fake", messages=MESSAGES, max_tokens=20, **given)


def ask_text(client, **more):
    given = {"temperature": 0} | more
    return client.completions.create(model="fake", prompt="some", max_tokens=20, **given)


@pytest.mark.parametrize("count", [None, 3])
def test_a_chat(client, count):
    more = {} if count is None else {"top_logprobs": count}
    found = ask_chat(client, logprobs=True, **more).choices[0].logprobs
    tokens = expected_tokens(ServeRequest(tuple(ByteTokenizer().chat(MESSAGES)), 20))
    assert found.refusal is None and len(found.content) == len(tokens) == 20
    for token, entry in zip(tokens, found.content, strict=True):
        own, top, _ = rank(token, count or 0)
        text = ByteTokenizer().decode([token])
        assert (entry.token, entry.logprob) == (text, own)
        assert entry.bytes == (None if token >= 128 else [token])
        assert [one.logprob for one in entry.top_logprobs] == [value for _, value in top]
        if count:
            assert [one.token for one in entry.top_logprobs[:2]] == ["a", "\ufffd"]
            assert [one.bytes for one in entry.top_logprobs[:2]] == [[97], None]


@pytest.mark.parametrize("count", [0, 2])
def test_a_completion(client, count):
    choice = ask_text(client, logprobs=count).choices[0]
    tokens, found = expected_tokens(ServeRequest(tuple(b"some"), 20)), choice.logprobs
    assert found.tokens == [ByteTokenizer().decode([token]) for token in tokens]
    assert found.token_logprobs == [-token / 64.0 for token in tokens]
    for token, text, likely in zip(tokens, found.tokens, found.top_logprobs, strict=True):
        others = {"a": -0.25, "\ufffd": -1.5} if count else {}
        assert likely == {text: -token / 64.0} | others
    begins = [choice.text[offset:] for offset in found.text_offset]
    for text, begin in zip(found.tokens, begins, strict=True):
        assert text == "\ufffd" or begin.startswith(text)


@pytest.mark.parametrize("ask", [ask_chat, ask_text])
def test_a_stream_has_the_same(client, ask):
    more = {"logprobs": 2} if ask is ask_text else {"logprobs": True, "top_logprobs": 2}
    whole = ask(client, **more).choices[0].logprobs.model_dump()
    joined = {}
    for chunk in ask(client, stream=True, **more):
        if (part := chunk.choices[0].logprobs) is not None:
            for name, value in part.model_dump().items():
                joined[name] = None if value is None else joined.get(name, []) + value
    assert joined == whole


@pytest.mark.parametrize("ask", [ask_chat, ask_text])
def test_nobody_else_gets_them(client, ask):
    for more in ({}, {"logprobs": False}):
        assert ask(client, **more).choices[0].logprobs is None


def test_samples_have_their_own(client):
    choices = ask_text(client, logprobs=1, n=2, temperature=1, seed=1).choices
    for choice in choices:
        letters = [text for text in choice.logprobs.tokens if text != "\ufffd"]
        assert "".join(letters) == "".join(c for c in choice.text if c.isascii())


def describe(tokens, top, chat=True, decode=DECODE, prompt=()):
    ranks = [TokenLogprob(-1.0, top, 2)] * len(tokens)
    delta = generation.Delta(0, tokens=list(tokens), logprobs=ranks)
    return logprobs.make_logprobs(logprobs.TokenTexts(decode), chat, prompt).describe(delta)


def test_impossible_tokens_can_be_written_as_json():
    entry = describe([97], ((98, float("-inf")),))["content"][0]
    assert entry["top_logprobs"][0]["logprob"] == -9999.0


def test_a_character_of_several_tokens_begins_at_one_place():
    found = describe([97, *EURO, 98], (), chat=False)
    assert found["text_offset"] == [0, 1, 1, 1, 2]


def test_of_alternatives_with_one_text_the_likeliest_counts():
    found = describe([97], ((0xE2, -0.5), (0xE3, -0.75)), chat=False)
    assert found["top_logprobs"] == [{"\ufffd": -0.5, "a": -1.0}]


def test_words_keep_their_space():
    """A tokenizer may drop the space before the first word of a text."""
    words = {1: " the", 2: " cat"}

    def decode(ids):
        return "".join(words[id] for id in ids).removeprefix(" ")

    for prompt, offsets in {(): [0, 3], (2,): [0, 4]}.items():
        found = describe([1, 2], (), chat=False, decode=decode, prompt=prompt)
        assert found["text_offset"] == offsets and found["tokens"] == [" the", " cat"]
    assert [one["token"] for one in describe([1, 2], (), decode=decode)["content"]] == [
        " the",
        " cat",
    ]


def test_a_model_without_a_tokenizer():
    entry = describe([7], (), decode=None)["content"][0]
    assert entry["token"] == "token_id:7" and entry["bytes"] is None
