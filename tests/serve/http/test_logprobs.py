"""Log-probabilities in OpenAI's shapes, with the official client and a fake engine."""

import pytest
from fake_engine import EOS, ByteTokenizer, expected_tokens, rank

from jaxspec.serve.requests import ServeRequest, TokenLogprob

openai = pytest.importorskip("openai")
http_server = pytest.importorskip("http_server")
logprobs = pytest.importorskip("jaxspec.serve.http.completions.logprobs")
prompts = pytest.importorskip("jaxspec.serve.http.completions.prompts")
generation = pytest.importorskip("jaxspec.serve.http.completions.generation")

BYTES = ByteTokenizer()
MESSAGES = [{"role": "user", "content": "Hi"}]
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


def describe(tokens, top, chat=True, tokenizer=BYTES, prompt=()):
    ranks = [TokenLogprob(-1.0, top, 2)] * len(tokens)
    delta = generation.Delta(0, tokens=list(tokens), logprobs=ranks)
    texts = logprobs.TokenTexts(tokenizer)
    write = logprobs.ChatLogprobs(texts) if chat else logprobs.TextLogprobs(texts, prompt)
    return write.describe(delta)


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

    class Words:
        def decode(self, ids, special=False):
            return "".join(words[id] for id in ids).removeprefix(" ")

    for prompt, offsets in {(): [0, 3], (2,): [0, 4]}.items():
        found = describe([1, 2], (), chat=False, tokenizer=Words(), prompt=prompt)
        assert found["text_offset"] == offsets and found["tokens"] == [" the", " cat"]
    found = describe([1, 2], (), tokenizer=Words())["content"]
    assert [one["token"] for one in found] == [" the", " cat"]


def test_special_tokens_have_a_text_where_they_are_named():
    """The text of the answer is without them."""
    found = describe([97, EOS, 98], (), chat=False)
    assert found["tokens"] == ["a", "<eos>", "b"] and found["text_offset"] == [0, 1, 1]


def test_a_model_without_a_tokenizer():
    entry = describe([7], (), tokenizer=None)["content"][0]
    assert entry["token"] == "token_id:7" and entry["bytes"] is None


def expect_prompt(ids, count):
    """What the fake engine says of a prompt, in the shape of completions."""
    own = [rank(token, count) for token in ids[1:]]
    texts = [ByteTokenizer().decode([id], special=True) for id in ids]
    top = []
    for text, one in zip(texts[1:], own, strict=True):
        likely = {}
        for other, logprob in ((ByteTokenizer().decode([id]), value) for id, value in one.top):
            likely.setdefault(other, logprob)
        top.append(likely | {text: likely.get(text, one.logprob)})
    return texts, [None, *(one.logprob for one in own)], [None, *top]


@pytest.mark.parametrize(
    ("prompt", "ids", "text", "offsets"),
    [
        ("some", [*b"some"], "some", [0, 1, 2, 3]),
        ("h€i", [*"h€i".encode()], "h€i", [0, 1, 1, 1, 2]),
        ([104, 105], [104, 105], "hi", [0, 1]),
        ([104, EOS, 105], [104, EOS, 105], "h<eos>i", [0, 1, 6]),
        ([104], [104], "h", [0]),
    ],
)
@pytest.mark.parametrize("new", [0, 1, 5])
def test_an_echo(client, prompt, ids, text, offsets, new):
    given = {"prompt": prompt, "max_tokens": new, "temperature": 0}
    alone = client.completions.create(model="fake", logprobs=2, **given).choices[0]
    whole = client.completions.create(model="fake", echo=True, logprobs=2, **given).choices[0]
    tokens, values, top = expect_prompt(ids, 2)
    assert whole.text == text + alone.text and whole.finish_reason == "length"
    found, later = whole.logprobs, alone.logprobs
    # Of no tokens there are none.
    extra = {name: getattr(later, name) if new else [] for name in ("tokens", "token_logprobs")}
    assert found.tokens == tokens + extra["tokens"]
    assert found.token_logprobs == values + extra["token_logprobs"]
    assert found.top_logprobs == top + (later.top_logprobs if new else [])
    moved = [len(text) + offset for offset in later.text_offset] if new else []
    assert found.text_offset == offsets + moved
    said = client.completions.create(model="fake", echo=True, **given).choices[0]
    assert said.text == whole.text and said.logprobs is None


def test_echoes_of_several_prompts_and_samples(client):
    given = {"prompt": ["ab", "€"], "n": 2, "max_tokens": 8, "seed": 1}
    asked = given | {"echo": True, "logprobs": 1}
    alone = client.completions.create(model="fake", logprobs=1, **given).choices
    whole = client.completions.create(model="fake", **asked).choices
    for one, other, prompt in zip(whole, alone, ("ab", "ab", "€", "€"), strict=True):
        assert one.text == prompt + other.text
        count = len(prompt.encode())
        assert one.logprobs.tokens[count:] == other.logprobs.tokens
        assert one.logprobs.token_logprobs[count:] == other.logprobs.token_logprobs
        assert one.logprobs.token_logprobs[0] is None and None not in one.logprobs.top_logprobs[1:]
    streamed = [("", {}) for _ in whole]
    for chunk in client.completions.create(model="fake", stream=True, **asked):
        (part,) = chunk.choices
        text, found = streamed[part.index]
        for name, value in (part.logprobs.model_dump() if part.logprobs else {}).items():
            found[name] = found.get(name, []) + value
        streamed[part.index] = text + part.text, found
    assert streamed == [(one.text, one.logprobs.model_dump()) for one in whole]


def test_only_the_first_sample_reads_a_prompt():
    with http_server.running() as server:
        server.post(prompt=["ab", "cd"], n=3, echo=True, logprobs=3, prompt_logprobs=1)
        assert [one.prompt_logprobs for one in server.engine.seen] == [3, None, None] * 2
        server.post(prompt="ab", echo=True, prompt_logprobs=0)
        assert server.engine.seen[-1].prompt_logprobs == 0
        server.post(prompt="ab", echo=True)
        assert server.engine.seen[-1].prompt_logprobs is None


@pytest.mark.parametrize("count", [0, 3])
def test_log_probabilities_of_prompts_as_in_vllm(count):
    ids = [*b"hae", EOS]
    with http_server.running() as server:
        text = server.post(prompt=ids, prompt_logprobs=count, max_tokens=1, n=2).json()
        chat = server.post(
            "/v1/chat/completions", messages=MESSAGES, prompt_logprobs=count, max_tokens=1
        ).json()
    for choice in text["choices"]:
        first, *found = choice["prompt_logprobs"]
        assert first is None and len(found) == 3
        for id, one in zip(ids[1:], found, strict=True):
            own = rank(id, count)
            shown = ByteTokenizer().decode([id], special=True)
            assert one[str(id)] == {
                "logprob": own.logprob,
                "rank": own.rank,
                "decoded_token": shown,
            }
            others = {id for id, _ in own.top} | {id}
            assert {int(name) for name in one} == others
        assert choice["logprobs"] is None
    assert len(chat["prompt_logprobs"]) == len(ByteTokenizer().chat(MESSAGES))
    assert "prompt_logprobs" not in chat["choices"][0]


class Marked(ByteTokenizer):
    """It begins each text with one special token, and ends it with another."""

    def encode(self, text, special=True):
        return [EOS, *super().encode(text), EOS] if special else super().encode(text)


def test_tokens_that_a_tokenizer_adds_have_no_place_in_an_echo():
    found = prompts.echo_prompt(Marked(), [EOS, *b"h\xc3\xa9", EOS], "hé")
    assert found == ("hé", [0, 0, 1, 1, 2])
    assert prompts.echo_prompt(Marked(), [EOS, 104], None) == ("<eos>h", [0, 5])
    assert prompts.echo_prompt(None, [1, 2], None) == ("", [0, 0])
