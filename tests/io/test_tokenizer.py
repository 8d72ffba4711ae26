"""Tokenizers of a directory, end-of-text ids, and text that streams in pieces."""

from __future__ import annotations

import json

import pytest
import tokenizer_toys as toys
from tokenizers import processors

from jaxspec.io.text import tokenizer_files
from jaxspec.io.text.tokenizer import Tokenizer, eos_ids, load_tokenizer, replace_surrogates

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory):
    """Byte-level BPE without merges: every character beyond ASCII is spread over several tokens."""
    folder = tmp_path_factory.mktemp("tokenizers") / "bytes"
    return toys.save(folder, toys.byte_level(), chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory):
    """Metaspace words with byte fallback and a begin-of-text token, as Llama 2's; a text's first
    space is stripped.
    """
    fast = toys.pieces("llama", ["▁a", "▁b", "c", "▁"])
    fast.add_special_tokens(["<s>"])
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", fast.token_to_id("<s>"))]
    )
    return toys.save(tmp_path_factory.mktemp("tokenizers") / "pieces", fast)


def test_a_directory_without_a_tokenizer(tmp_path):
    assert load_tokenizer(tmp_path) is None
    assert eos_ids(tmp_path, None) == ()


def test_a_damaged_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="the tokenizer cannot be read") as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


PIECE = b"\n\x0e\n\x05<unk>\x15\0\0\0\0\x18\x02"  # the first of a SentencePiece model
RANKS = b"IQ== 0\nIg== 1\n"  # tiktoken's: bytes in base 64, and their rank
LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:12\nsize 499723\n"
CODE = {"auto_map": {"AutoTokenizer": ["oak.Oak", None]}, "tokenizer_class": "Oak"}


@pytest.mark.parametrize(
    "files, installed, message",
    [
        ({"tokenizer.model": PIECE}, (), "SentencePiece's.*: pip install sentencepiece protobuf,"),
        ({"tokenizer.model": PIECE}, ("google.protobuf", "tiktoken"), "pip install sentencepiece,"),
        ({"tokenizer.model": PIECE}, ("sentencepiece",), "pip install protobuf, or add"),
        (
            {"tokenizer.model": RANKS},
            ("sentencepiece",),
            "tiktoken's.*: pip install tiktoken, or add",
        ),
        ({"tokenizer.model": b""}, (), "tokenizer.model is empty: download it again"),
        ({"tokenizer.model": LFS}, (), "tokenizer.model is a pointer of Git LFS.*`git lfs pull`"),
        ({"tokenizer.json": LFS}, (), "tokenizer.json is a pointer of Git LFS.*`git lfs pull`"),
        ({"tokenizer.json": b'{"model": '}, (), r"cannot be read \(.*\); download its files again"),
        (
            {"tokenizer.json": b'{"added_tokens": [], "model": {"type": "Oak"}}'},
            (),
            "pip install -U tokenizers",
        ),
        ({"vocab.json": b'{"a": 0}'}, (), "add the model's tokenizer.json and"),
        (
            {"vocab.txt": b"a", "tokenizer_config.json": CODE},
            (),
            "code in a model's folder is not run",
        ),
    ],
)
def test_what_is_missing_is_named(tmp_path, monkeypatch, files, installed, message):
    """In one line, whose advice is true; a package that is there is not asked for."""
    monkeypatch.setattr(tokenizer_files, "is_installed", installed.__contains__)
    for name, data in files.items():
        data = data if isinstance(data, bytes) else json.dumps(data).encode()
        (tmp_path / name).write_bytes(data)
    with pytest.raises(ValueError, match=message) as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value) and str(tmp_path) in str(caught.value)


@pytest.mark.parametrize("asked", [None, False])
def test_a_sentencepiece_model_alone(tmp_path, asked):
    """Read as the authors' library does, after the begin-of-text token unless settings say no."""
    trainer = pytest.importorskip("sentencepiece").SentencePieceTrainer
    text, settings = ["the capital of france is paris"] * 50, {"model_type": "bpe"}
    settings |= {"vocab_size": 280, "byte_fallback": True, "hard_vocab_limit": False}
    trainer.train(
        sentence_iterator=iter(text), model_prefix=str(tmp_path / "tokenizer"), **settings
    )
    if asked is not None:
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"add_bos_token": asked}))
    tokenizer = load_tokenizer(tmp_path)
    ids = tokenizer.encode("the capital 世")
    assert (ids[0] == 1) == (asked is None) and tokenizer.eos == (2,)
    assert tokenizer.decode(ids) == "the capital 世"
    assert tokenizer.decode(ids[:-1]) == "the capital \N{REPLACEMENT CHARACTER}"


def test_text_round_trip(byte_level):
    tokenizer = load_tokenizer(byte_level)
    text = "naïve — 日本 🙂\n\tx , y ."
    ids = tokenizer.encode(text)
    assert len(ids) == len(text.encode())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([*ids, *tokenizer.eos]) == text
    assert len(tokenizer) == 258
    assert load_tokenizer(byte_level) is tokenizer


def test_chat(byte_level, sentencepiece):
    tokenizer = load_tokenizer(byte_level)
    start, end = (tokenizer.encode(mark)[0] for mark in ("<s>", "</s>"))
    ids = tokenizer.chat([{"role": "user", "content": "hi"}])
    assert ids == [start, *tokenizer.encode("user:hi"), end, start, *tokenizer.encode("assistant:")]
    with pytest.raises(ValueError, match="no chat template: pass the prompt as a string"):
        load_tokenizer(sentencepiece).chat([{"role": "user", "content": "hi"}])
    for bad in ([], ["hi"], [{"role": "user"}]):
        with pytest.raises(ValueError, match="chat messages are a non-empty list"):
            tokenizer.chat(bad)


def test_begin_of_text_is_added_to_texts_only(sentencepiece):
    tokenizer = load_tokenizer(sentencepiece)
    start = tokenizer.encode("c")[0]
    assert tokenizer.decode([start]) == ""


def test_eos_is_the_union_of_all_that_name_one(byte_level, tmp_path):
    tokenizer = load_tokenizer(byte_level)
    assert tokenizer.eos == (257,)
    (tmp_path / "generation_config.json").write_text(json.dumps({"eos_token_id": [7, 257]}))
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": 5}))
    assert eos_ids(tmp_path, tokenizer) == (5, 7, 257)
    assert eos_ids(tmp_path, None) == (5, 7, 257)
    (tmp_path / "config.json").write_text(json.dumps({"eos_token_id": None}))
    (tmp_path / "generation_config.json").unlink()
    assert eos_ids(tmp_path, tokenizer) == (257,)


# Texts with halves of surrogate pairs, and what is read in their place.
HALVES = {
    "hi \ud83d there": "hi \ufffd there",
    "\ude00": "\ufffd",
    "end \ud83d": "end \ufffd",
    "\ud83d\ude00 whole": "😀 whole",
    "\ude00\ud83d": "\ufffd\ufffd",
    "\ud83d\ud83d\ude00": "\ufffd😀",
    "a byte of a command line: \udcff": "a byte of a command line: \ufffd",
    "plain 😀 \ufffd": "plain 😀 \ufffd",
}


def test_half_surrogate_pairs_are_replaced():
    for text, expected in HALVES.items():
        assert replace_surrogates(text) == expected
    given = {"\ud83d": ["\ud83d", 1, None, {"a": ["\ud83d"]}], "b": {"c": "d"}}
    kept = json.dumps(given)
    assert replace_surrogates(given) == json.loads(kept.replace("\\ud83d", "\ufffd"))
    assert json.dumps(given) == kept, "the caller's value is not changed"
    deep = "\ud83d"
    for _ in range(10_000):
        deep = [deep]
    replace_surrogates(deep)


@pytest.mark.parametrize("text", HALVES)
def test_half_surrogate_pairs_can_be_encoded(byte_level, text):
    tokenizer, expected = load_tokenizer(byte_level), HALVES[text]
    assert tokenizer.encode(text) == tokenizer.encode(expected)
    messages = [[{"role": "user", "content": one, "more": [one]}] for one in (text, expected)]
    asked = [tokenizer.chat(one, variable={"a": text}) for one in messages]
    assert asked[0] == asked[1] and messages[0][0]["content"] == text


def test_special_tokens_are_written_out_for_those_who_ask(byte_level, sentencepiece):
    tokenizer = load_tokenizer(sentencepiece)
    with_start = tokenizer.encode("a b")
    assert with_start[1:] == tokenizer.encode("a b", special=False) != with_start
    assert tokenizer.decode(with_start) == "a b" and "<s>" in tokenizer.decode(
        with_start, special=True
    )
    start, *bytes = tokenizer.encode("世")
    assert tokenizer.decode([start, *bytes[:-1]], special=True) == "<s> \ufffd"
    tokenizer = load_tokenizer(byte_level)
    ids = tokenizer.encode("<s>hé</s>")
    assert tokenizer.decode(ids) == "hé" and tokenizer.decode(ids, special=True) == "<s>hé</s>"


def test_a_chat_without_the_beginning_of_an_answer(byte_level):
    tokenizer = load_tokenizer(byte_level)
    messages = [{"role": "user", "content": "Hi"}]
    bare = tokenizer.chat(messages, add_generation_prompt=False)
    assert tokenizer.decode(bare, special=True) == "<s>user:Hi</s>"
    whole = tokenizer.decode(tokenizer.chat(messages), special=True)
    assert whole == "<s>user:Hi</s><s>assistant:"


def test_what_a_tokenizer_says_of_itself(byte_level):
    info = load_tokenizer(byte_level).info
    assert (info["eos_token"], info["bos_token"], info["chat_template"]) == ("</s>", None, TEMPLATE)
