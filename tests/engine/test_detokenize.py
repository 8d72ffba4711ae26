"""Text of growing lists of tokens, against decoding the whole list."""

import numpy as np
import pytest

from jaxspec.engine.detokenize import Detokenizer
from jaxspec.io.hub import ZOO
from jaxspec.io.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer():
    return load_tokenizer(str(ZOO / "mini"))


def chunks(tokens, generator):
    """Cut a list into pieces of 1 to 8 tokens, as rounds emit them."""
    while tokens:
        size = int(generator.integers(1, 9))
        yield tokens[:size]
        tokens = tokens[size:]


TEXTS = (
    "Zwölf Boxkämpfer jagen Viktor quer über den großen Sylter Deich. " * 3,
    "def f(x):\n    return x  # 😀 naïve façade, 東京, Привет\n" * 3,
    "👩‍👩‍👧‍👦 family 🏳️‍🌈 flags",
)


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("seed", range(4))
def test_pieces_join_to_the_text(tokenizer, text, seed):
    tokens, generator = tokenizer.encode(text), np.random.default_rng(seed)
    one = Detokenizer(tokenizer.decode)
    pieces = [one.add(part) for part in chunks(tokens, generator)] + [one.finish()]
    assert "".join(pieces) == one.text == tokenizer.decode(tokens)
    assert not any("\N{REPLACEMENT CHARACTER}" in piece for piece in pieces)


@pytest.mark.parametrize("seed", range(8))
def test_broken_characters_are_those_of_the_whole(tokenizer, seed):
    """Random tokens, many of which are single bytes of no valid character."""
    generator = np.random.default_rng(seed)
    tokens = generator.integers(0, 400, 300).tolist()
    one = Detokenizer(tokenizer.decode)
    for part in chunks(tokens, generator):
        one.add(part)
    one.finish()
    assert one.text == tokenizer.decode(tokens)


def test_work_is_linear(tokenizer):
    """4,000 tokens in rounds of four: each token is decoded a few times, not thousands of times."""
    decoded = 0

    def decode(ids):
        nonlocal decoded
        decoded += len(ids)
        return tokenizer.decode(ids)

    tokens = (tokenizer.encode(TEXTS[0] + TEXTS[1]) * 50)[:4000]
    one = Detokenizer(decode)
    for start in range(0, len(tokens), 4):
        one.add(tokens[start : start + 4])
    assert one.text + one.finish() == tokenizer.decode(tokens)
    assert decoded < 10 * len(tokens)
