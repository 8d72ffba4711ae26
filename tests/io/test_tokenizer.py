"""Tokenizers of a directory, end-of-text ids, and text that streams in pieces."""

from __future__ import annotations

import json

import pytest
from tokenizers import Tokenizer as Fast
from tokenizers import decoders, models, pre_tokenizers, processors

from jaxspec.io.tokenizer import Tokenizer, eos_ids, load_tokenizer

TEMPLATE = (
    "{% for m in messages %}<s>{{ m['role'] }}:{{ m['content'] }}</s>{% endfor %}"
    "{% if add_generation_prompt %}<s>assistant:{% endif %}"
)


def save(directory, fast, **settings):
    fast.add_special_tokens(["<s>", "</s>"])
    directory.mkdir()
    fast.save(str(directory / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "</s>", **settings}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings))
    return directory


@pytest.fixture(scope="session")
def byte_level(tmp_path_factory):
    """Byte-level BPE without merges: every character beyond ASCII is spread over several tokens."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    fast = Fast(models.BPE(vocab={symbol: i for i, symbol in enumerate(alphabet)}, merges=[]))
    fast.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    fast.decoder = decoders.ByteLevel()
    return save(tmp_path_factory.mktemp("tokenizers") / "bytes", fast, chat_template=TEMPLATE)


@pytest.fixture(scope="session")
def sentencepiece(tmp_path_factory):
    """Metaspace words with byte fallback and a begin-of-text token, as Llama 2's; a text's first
    space is stripped.
    """
    words = ["<unk>", "▁a", "▁b", "c", "▁", *(f"<0x{i:02X}>" for i in range(256))]
    fast = Fast(
        models.BPE(
            vocab={w: i for i, w in enumerate(words)},
            merges=[],
            unk_token="<unk>",
            byte_fallback=True,
        )
    )
    fast.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    fast.add_special_tokens(["<s>", "</s>"])
    fast.post_processor = processors.TemplateProcessing(
        single="<s> $A", special_tokens=[("<s>", fast.token_to_id("<s>"))]
    )
    return save(tmp_path_factory.mktemp("tokenizers") / "pieces", fast)


def test_a_directory_without_a_tokenizer(tmp_path):
    assert load_tokenizer(tmp_path) is None
    assert eos_ids(tmp_path, None) == ()


def test_a_damaged_tokenizer(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ValueError, match="the tokenizer cannot be read") as caught:
        Tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


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
