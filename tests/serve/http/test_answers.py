"""Who made which part of a text, where tokens and characters do not end together."""

import pytest
from fake_engine import ByteTokenizer

answers = pytest.importorskip("jaxspec.serve.http.completions.answers")
generation = pytest.importorskip("jaxspec.serve.http.completions.generation")

EURO = "€".encode()  # three bytes, so three tokens


def describe(*deltas) -> list[list[tuple[str, bool, int]]]:
    """Describe (tokens, drafted, text) one after the other."""
    trace = answers.Trace(ByteTokenizer().decode)
    found = []
    for tokens, drafted, text in deltas:
        delta = generation.Delta(0, text, list(tokens), list(drafted))
        pieces = trace.describe(delta)["pieces"]
        found.append([(one["text"], one["drafted"], one["token"]) for one in pieces])
    return found


def test_a_token_each():
    assert describe((b"ab", (True, False), "ab")) == [[("a", True, 0), ("b", False, 1)]]


def test_a_character_belongs_to_the_token_of_its_last_byte():
    assert describe((EURO, (True, True, False), "€")) == [[("€", False, 2)]]
    split = describe((EURO[:2], (True, True), ""), (EURO[2:] + b"x", (False, True), "€x"))
    assert split == [[], [("€", False, 2), ("x", True, 3)]]


def test_a_character_that_stays_incomplete():
    """The limit may cut it; its replacement belongs to the last token."""
    found = describe((b"a" + EURO[:2], (False, True, True), "a"), (b"", (), "\ufffd"))
    assert found == [[("a", False, 0)], [("\ufffd", True, 2)]]


def test_held_back_text_keeps_its_maker():
    """Text that might begin a stop string comes with later tokens."""
    found = describe((b"abc", (True, False, True), "a"), (b"d", (False,), "bcd"))
    assert found == [[("a", True, 0)], [("b", False, 1), ("c", True, 2), ("d", False, 3)]]


def test_an_answer_keeps_its_first_space():
    """A tokenizer may leave out the space of a text's first word; after a prompt it is there."""
    words = {1: " the", 2: " cat"}

    def decode(ids):
        return "".join(words.get(id, "") for id in ids).removeprefix(" ")

    for prompt, texts in {(2, 1): [" the", " cat"], (0,): ["the", " cat"]}.items():
        trace = answers.Trace(decode, prompt)
        delta = generation.Delta(0, "".join(texts), [1, 2], [True, False])
        assert [one["text"] for one in trace.describe(delta)["pieces"]] == texts


def test_a_stop_string_cuts_text():
    assert describe((b"abcd", (True,) * 4, "ab")) == [[("a", True, 0), ("b", True, 1)]]
