"""Special tokens of GGUF files whose metadata is absent or wrong, by llama.cpp's rules."""

from __future__ import annotations

from types import SimpleNamespace

import gguf_models
import pytest

import jaxspec
from jaxspec.io.files.gguf_files import GgufFile
from jaxspec.io.text.gguf_special import read_special
from jaxspec.io.text.gguf_tokenizer import build_tokenizer, end_ids
from jaxspec.io.text.tokenizer import load_tokenizer

LLAMA3 = ["a", "<|end_of_text|>", "<|eot_id|>"]
SPM = {
    "model": "llama",
    "tokens": ["<unk>", "<s>", "</s>", "▁", "a", "▁a"],
    "scores": [0.0, 0.0, 0.0, -1.0, -2.0, -3.0],
    "token_type": [2, 3, 3, 1, 1, 1],
}
BPE = {"model": "gpt2", "pre": "qwen2", "tokens": ["a", "b", "Ġ", "<|endoftext|>", "<|im_end|>"]}


def file_of(template=None, **entries):
    metadata = {f"tokenizer.ggml.{name}": value for name, value in entries.items()}
    return SimpleNamespace(path="m.gguf", metadata=metadata | {"tokenizer.chat_template": template})


@pytest.fixture
def load(tmp_path):
    """Return a function that builds a file's tokenizer and reads it back from its folder."""

    def build(**entries):
        build_tokenizer(file_of(**entries)).save_pretrained(tmp_path)
        return load_tokenizer(tmp_path)

    return build


@pytest.mark.parametrize(
    ("entries", "ends"),
    [
        ({"tokens": LLAMA3, "token_type": [1, 3, 3], "eos_token_id": 1}, (1, 2)),
        # Types that are wrong or absent.
        ({"tokens": LLAMA3, "token_type": [1, 1, 1], "eos_token_id": 1}, (1, 2)),
        ({"tokens": LLAMA3}, (1, 2)),
        # Qwen3 with the end of turn alone, Gemma, Phi, a tool's call.
        ({"tokens": ["a", "<|endoftext|>", "<|im_end|>"], "eos_token_id": 2}, (1, 2)),
        ({"tokens": ["<pad>", "<eos>", "<bos>", "<end_of_turn>"], "eos_token_id": 1}, (1, 3)),
        ({"tokens": ["a", "<|endoftext|>", "<|end|>"], "eos_token_id": 1}, (1, 2)),
        ({"tokens": ["a", "<|eom_id|>", "<|eot_id|>"]}, (1, 2)),
        # Ids by entries of their own, whatever their text.
        (
            {"tokens": list("abcd"), "eos_token_id": 0, "eot_token_id": 2, "eom_token_id": 3},
            (0, 2, 3),
        ),
        # Ids outside the vocabulary.
        ({"tokens": LLAMA3, "eos_token_id": 3, "eot_token_id": 2**32 - 1}, (1, 2)),
        ({"tokens": list("abc"), "eos_token_id": 3}, ()),
        # Code models: what ends a file or a repository.
        ({"tokens": ["a", "<|file_sep|>", "<|repo_name|>", "<|fim_pad|>"]}, (1, 2, 3)),
        # SentencePiece's numbers, where nothing says otherwise.
        ({"model": "llama", "tokens": list("abcd")}, (2,)),
        ({"model": "llama", "tokens": ["<pad>", "<eos>", "<bos>"]}, (1,)),
        ({"model": "gpt2", "tokens": list("abcd")}, ()),
        # A message's end that ends no answer, and a tag that is no end.
        ({"tokens": ["<|end|>", "<|return|>", "<|call|>"]}, (1, 2)),
        ({"tokens": ["<|end|>", "<|flush|>", "<|calls|>"]}, (1, 2)),
        ({"tokens": ["</s>", "<turn|>", "<|tool_response>"]}, (1, 2)),
        # No vocabulary.
        ({"eos_token_id": 7}, (7,)),
        ({}, ()),
    ],
)
def test_ends_are_found(entries, ends):
    assert end_ids(file_of(**entries)) == ends


def test_ends_of_a_file_reach_the_model(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    tokens, types = [*"abc", "<|end_of_text|>", "<|eot_id|>"], [1, 1, 1, 3, 1]
    about = {"token_type": types, "eos_token_id": 3, "pre": "llama-bpe"}
    gguf_models.write_gguf("llama", tmp_path / "model.gguf", tokens=tokens, **about)
    assert end_ids(GgufFile(tmp_path / "model.gguf")) == (3, 4)
    params = jaxspec.load(tmp_path / "model.gguf", dtype="float32")
    assert params.spec.eos == (3, 4)
    tokenizer = load_tokenizer(params.spec.tokenizer)
    # A known end is one token that no text shows, though its type says otherwise.
    assert tokenizer.encode("a<|eot_id|>b") == [0, 4, 1] and tokenizer.decode([0, 4, 1]) == "ab"


def test_a_file_without_a_vocabulary_loads(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    gguf_models.write_gguf("llama", tmp_path / "model.gguf", model="no_vocab")
    assert jaxspec.load(tmp_path / "model.gguf", dtype="float32").spec.tokenizer is None


TEMPLATE = "{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"


@pytest.mark.parametrize(
    ("entries", "ids"),
    [
        # SentencePiece begins a text with BOS and a space unless the file says otherwise.
        (SPM, [1, 5]),
        (SPM | {"add_bos_token": False}, [5]),
        (SPM | {"add_space_prefix": False}, [1, 4]),
        (SPM | {"add_eos_token": True}, [1, 5, 2]),
        (SPM | {"bos_token_id": 77}, [1, 5]),
        # Byte-level vocabularies do not, but for Llama 3's and its kin.
        (BPE, [0]),
        (BPE | {"bos_token_id": 3}, [0]),
        (BPE | {"bos_token_id": 3, "add_bos_token": True}, [3, 0]),
        (BPE | {"add_eos_token": True, "eos_token_id": 4}, [0, 4]),
        (BPE | {"pre": "llama-bpe", "bos_token_id": 3}, [3, 0]),
        (BPE | {"pre": "tekken", "bos_token_id": 3}, [3, 0]),
        (BPE | {"pre": "llama-bpe", "bos_token_id": 3, "add_bos_token": False}, [0]),
        (BPE | {"pre": "llama-bpe", "tokens": ["a", "<|begin_of_text|>"]}, [1, 0]),
        (BPE | {"pre": "llama-bpe"}, [0]),  # it has no BOS
    ],
)
def test_texts_begin_and_end_as_the_kind_says(entries, ids, load):
    tokenizer = load(**entries)
    assert tokenizer.encode("a") == ids
    assert tokenizer.decode(ids).strip() == "a"


def test_a_template_that_writes_bos_gives_one(load):
    hello = [{"role": "user", "content": "a"}]
    assert load(**SPM, template=TEMPLATE).chat(hello) == [1, 5]


def test_named_templates_and_none(load):
    file = file_of(**BPE)
    file.metadata["tokenizer.chat_template.default"] = TEMPLATE
    assert build_tokenizer(file).chat_template == TEMPLATE
    tokenizer = load(**BPE, template="")
    assert not tokenizer.has_chat_template
    with pytest.raises(ValueError, match="no chat template: pass the prompt as a string"):
        tokenizer.chat([{"role": "user", "content": "a"}])


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        (BPE | {"eos_token_id": 99}, "eos_token_id is 99, outside the vocabulary of 5"),
        (BPE | {"bos_token_id": "a"}, "bos_token_id is no integer"),
        (BPE | {"tokens": list("ab"), "add_bos_token": True}, "no entry names it"),
        ({name: BPE[name] for name in ("model", "tokens")}, "does not say how text is split"),
        (BPE | {"tokens": ["a", "b", "ab"]}, "has no merges: text is split into bytes"),
    ],
)
def test_what_is_wrong_is_logged(entries, said, caplog):
    build_tokenizer(file_of(**entries))
    assert said in caplog.text and "m.gguf" in caplog.text


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({name: SPM[name] for name in ("model", "tokens")}, "needs a score per token"),
        (SPM | {"scores": [0.0]}, "has 6 tokens, but scores 1 values"),
        (BPE | {"token_type": [1]}, "has 5 tokens, but token_type 1 values"),
        (BPE | {"tokens": ["a", "b", "a"]}, "holds 'a' twice"),
        (BPE | {"pre": "unheard-of"}, "pre-tokenizer 'unheard-of' is not supported"),
        ({"model": "bert", "tokens": ["a"]}, "of kind 'bert' is not supported"),
        ({"model": "gpt2"}, "of kind 'gpt2' is not supported"),
    ],
)
def test_what_cannot_be_completed_is_refused(entries, message):
    with pytest.raises(ValueError, match=message):
        build_tokenizer(file_of(**entries))


def test_absent_parts_have_llama_cpps_values():
    special = read_special(file_of(**SPM).metadata)
    assert (special.bos, special.eos, special.unknown, special.padding) == (1, 2, 0, None)
    assert special.faults == ()


def test_default_split_puts_digits_into_threes():
    tokens, merges = ["", *"1234", "12", "34", "123", "1234"], ["3 4", "1 2", "12 3", "12 34"]
    built = build_tokenizer(file_of(model="gpt2", pre="default", tokens=tokens, merges=merges))
    assert built.tokenize("1234") == ["123", "4"]
    assert built.convert_ids_to_tokens(0) == "[EMPTY_0]"
