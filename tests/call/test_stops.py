"""Stop strings and prompts: the host's part of a decode, without a model."""

import numpy as np
import pytest

from jaxspec.call.text.stops import Stops, find_stop
from jaxspec.call.text.streamed_text import StreamedText
from jaxspec.call.text.token_ids import is_batch, number_sequences, pad, to_ids
from jaxspec.core.config import TargetConfig


def spell(tokens):
    """A toy detokeniser: one character a token."""
    return "".join(map(chr, tokens))


@pytest.mark.parametrize("text", ["hello world", "aab", "xxaabyy", "aaab aab"])
def test_find_stop_equals_looking_after_every_token(text):
    tokens, stops = [ord(c) for c in text], ("aab", "ow", "ld")
    expected = None
    for count in range(1, len(tokens) + 1):
        seen = spell(tokens[:count])
        if any(stop in seen for stop in stops):
            expected = count, seen[: min(seen.find(stop) for stop in stops if stop in seen)]
            break
    assert find_stop(tokens, spell, Stops(stops)) == expected


class Speller:
    """A toy tokenizer."""

    decode = staticmethod(spell)


@pytest.mark.parametrize("seed", range(30))
def test_a_stream_ends_where_the_stop_string_begins(seed):
    """However the tokens arrive: the first of them may hold a whole stop string."""
    draw, text, stops = np.random.default_rng(seed), "hello aab world", ("lo aa", "w", "zz")
    tokens = [ord(c) for c in text[draw.integers(5) :]]
    stream, shown, at = StreamedText(Speller, Stops(stops)), "", 0
    while at < len(tokens) and not stream.stopped:
        count = int(draw.integers(1, 12))
        piece = stream.add(tokens[at : at + count])
        shown, at = shown + piece, at + count
    found = find_stop(tokens[:at], spell, Stops(stops))
    assert stream.stopped and shown + stream.rest("", found[1]) == found[1]


def test_safe_length_holds_what_a_stop_may_take_back():
    assert Stops(("<end>",)).safe_length("abc<") == 3
    assert Stops(("<end>", "zz")).safe_length("abc<en") == 3
    assert Stops(("<end>",)).safe_length("abc<x") == 5
    assert Stops(()).safe_length("ab\N{REPLACEMENT CHARACTER}") == 2


def test_sequence_numbers_depend_on_the_prompt_and_its_repeats_alone():
    alone = number_sequences([[1, 2]])
    together = number_sequences([[3], [1, 2], [1, 2], [4]])
    assert together[1] == alone[0]
    assert together[2] != together[1]
    assert len(set(together.tolist())) == 4


def test_kinds_of_prompts():
    config = TargetConfig(
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_dim=8,
        ffn_size=8,
        vocab_size=10,
    )
    assert not is_batch("text") and not is_batch([1, 2]) and not is_batch(np.array([1, 2]))
    assert not is_batch([{"role": "user", "content": "x"}])
    assert (
        is_batch(["a", "b"])
        and is_batch([[1], [2]])
        and is_batch([[{"role": "user", "content": "x"}]])
    )
    assert to_ids(np.array([1, 2]), None, config) == [1, 2]
    tokens, lengths = pad([[1, 2, 3], [4]], 5)
    np.testing.assert_array_equal(tokens, [[1, 2, 3, 0, 0], [4, 0, 0, 0, 0]])
    np.testing.assert_array_equal(lengths, [3, 1])


def test_marks_take_time_that_is_linear_in_the_text():
    """Special tokens again and again, in a text that is searched for strings that hold them."""
    decoded = 0

    def spell_some(tokens):
        nonlocal decoded
        decoded += len(tokens)
        return spell(token for token in tokens if token)

    tokens, stops = [0, ord("a"), 0] * 700, Stops(("ab", "b\uffff"), marks={0: "\uffff"})
    assert stops.mark(spell_some)(tokens) == "\uffffa\uffff" * 700
    assert find_stop(tokens, spell_some, stops) is None
    assert decoded < 60 * len(tokens)
