"""Text of growing lists of tokens, against decoding the whole list and against its bytes."""

import itertools

import hypothesis
import numpy as np
import pytest
import tokenizer_toys as toys
from hypothesis import strategies as st

from jaxspec.call.text.detokenize import Detokenizer, continue_after
from jaxspec.call.text.stops import Stops, find_stop, read_stops
from jaxspec.call.text.streamed_text import StreamedText
from jaxspec.io.hub import ZOO
from jaxspec.io.text.tokenizer import load_tokenizer

WORDS = ("▁Paris", "▁is", "is", "▁", ".", "世", "▁世界", "\N{REPLACEMENT CHARACTER}")
# Tokens that end within characters, as vocabularies of real models have them.
SPLIT = (b" is", b"Paris", b"\xb8\x96\xe4", b"x\xf0\x9f", b"\x98\x80", "界".encode() + b"\xe4")
KINDS = ("llama", "gemma", "first", "always", "never", "byte_level")
LEAVES_OUT = ("llama", "first", "always")  # a text's first space


class Toy:
    """A tokenizer of a kind, and the bytes of its tokens; special ones have none."""

    def __init__(self, kind, folder):
        fast = toys.byte_level(SPLIT) if kind == "byte_level" else toys.pieces(kind, WORDS)
        self.real = load_tokenizer(toys.save(folder / kind, fast))
        single = [bytes([byte]) for byte in range(256)]
        self.bytes = [*single, *SPLIT]
        if kind != "byte_level":
            self.bytes = [b"<unk>", *single, *(one.replace("▁", " ").encode() for one in WORDS)]
        self.kind, self.size = kind, len(self.bytes)
        self.eos = self.real.eos[0]

    def spell(self, tokens, after=()):
        """The text of tokens: their bytes in a row."""
        data = b"".join(self.bytes[one] for one in tokens if one < self.size)
        text = data.decode(errors="replace")
        if self.kind == "llama" and not after:
            return text.removeprefix(" ")
        if self.kind in LEAVES_OUT and not after:
            own = [one for one in tokens if one < self.size]
            return text[bool(own and own[0] > 256 and self.bytes[own[0]][:1] == b" ") :]
        return text

    def words(self, *texts):
        return [self.bytes.index(one.encode()) for one in texts]


@pytest.fixture(scope="module")
def toy(tmp_path_factory):
    made = {kind: Toy(kind, tmp_path_factory.mktemp("toys")) for kind in KINDS}
    return made.__getitem__


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


def draw_tokens(data, toy, most=30):
    """Tokens of which many are bytes of few characters, and special ones."""
    likely = [toy.bytes.index(bytes([byte])) for byte in "a 世界é😀".encode()]
    some = st.sampled_from(likely) | st.integers(0, toy.size + 3)
    return data.draw(
        st.lists(some.filter(lambda one: toy.bytes[0] != b"<unk>" or one), max_size=most)
    )


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=50, deadline=None, derandomize=True)
def test_text_is_that_of_the_bytes(toy, kind, data):
    """Whatever ends the tokens, however they arrive, with a prompt or without one."""
    toy = toy(kind)
    tokens, prompt = draw_tokens(data, toy), data.draw(st.booleans())
    before = toy.words(" is") if prompt else []
    assert toy.real.decode(tokens) == toy.spell(tokens)
    decode = continue_after(toy.real.decode, before)
    assert decode(tokens) == toy.spell(tokens, before)
    one, rest, joined = Detokenizer(decode), tokens, ""
    while rest:
        count = data.draw(st.integers(1, 5))
        joined += one.add(rest[:count])
        rest = rest[count:]
        # No later token takes back what is out, and all is out but a character that may grow.
        begun = toy.spell(tokens[: len(tokens) - len(rest)], before)
        assert joined == begun.removesuffix("\N{REPLACEMENT CHARACTER}")
    assert joined + one.finish() == one.text == toy.spell(tokens, before)
    assert one.length == len(one.text)


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=40, deadline=None, derandomize=True)
def test_stops_end_a_text_at_the_same_token(toy, kind, data):
    """A stop string with, after or within characters of several tokens, streamed or searched."""
    toy, before = toy(kind), toy(kind).words(" is")
    tokens = draw_tokens(data, toy)
    letters = st.sampled_from("a 世界é😀\N{REPLACEMENT CHARACTER}")
    strings = tuple(data.draw(st.lists(st.text(letters, min_size=1, max_size=3), max_size=2)))
    stops = Stops(strings, least=data.draw(st.integers(0, 4)) if strings else 0)

    def settled(count):
        return toy.spell(tokens[:count], before).removesuffix("\N{REPLACEMENT CHARACTER}")

    expected = None
    for count in range(stops.least + 1, len(tokens) + 1):
        text, early = settled(count), len(settled(stops.least))
        places = [found_after(text, stop, early) for stop in strings]
        if places := [place for place in places if place >= 0]:
            expected = count, text[: min(places)]
            break
    decode = continue_after(toy.real.decode, before)
    assert find_stop(tokens, decode, stops) == expected
    stream, shown, count = StreamedText(toy.real, stops, before), "", 0
    while count < len(tokens) and not stream.stopped:
        # Rounds of several tokens may cross the least number, and end after the stop string.
        news = tokens[count : count + data.draw(st.integers(1, 3))]
        count += len(news)
        shown += stream.add(news)
        assert stream.stopped == (expected is not None and expected[0] <= count)
    whole = toy.spell(tokens, before) if expected is None else expected[1]
    assert stream.rest(shown, whole) == whole and whole.startswith(shown)


def found_after(text, stop, early):
    """The first place of a stop string that ends after `early` characters; -1: none."""
    ends = (at for at in range(len(text)) if text[at:].startswith(stop) and at + len(stop) > early)
    return next(ends, -1)


@pytest.mark.parametrize("kind", KINDS)
@hypothesis.given(data=st.data())
@hypothesis.settings(max_examples=60, deadline=None, derandomize=True)
def test_special_tokens_end_a_text_though_it_does_not_show_them(toy, kind, data):
    """A stop string is one, holds some, or spells one by other tokens."""
    toy = toy(kind)
    ids = toy.real.special_ids
    assert {*ids} == {*toys.SPECIAL}
    letters = [toy.bytes.index(letter.encode()) for letter in "ab<s/>"]
    tokens = data.draw(st.lists(st.sampled_from([*letters, *ids.values()]), max_size=12))
    parts = st.lists(st.sampled_from(["a", "b", "<s>", "</s>"]), min_size=1, max_size=3)
    stop = tuple("".join(one) for one in data.draw(st.lists(parts, min_size=1, max_size=2)))
    names = {id: text for text, id in ids.items()}

    def search():
        for count in range(1, len(tokens) + 1):
            before = [
                text
                for one, reads in itertools.product(stop, (True, False))
                if (text := before_stop(tokens[:count], one, reads)) is not None
            ]
            if before:
                return count, min(before, key=len)

    def before_stop(tokens, stop, reads):
        """The shown text before a string, which may read the special tokens that it holds."""
        raw = []  # characters, each with whether it is shown
        for token in tokens:
            shown = token not in names
            text = toy.bytes[token].decode() if shown else names[token]
            raw += [(char, shown) for char in text if shown or (reads and text in stop)]
        place = "".join(char for char, _ in raw).find(stop)
        return None if place < 0 else "".join(char for char, shown in raw[:place] if shown)

    found_ids, stops = read_stops(stop, toy.size + 4, toy.real)
    ended = next((n for n, one in enumerate(tokens, 1) if one in found_ids), len(tokens))
    decode, expected = toy.real.decode, search()
    found = find_stop(tokens[:ended], decode, stops)
    if found is None and ended and tokens[ended - 1] in found_ids:
        found = ended, decode(tokens[:ended])
    assert found == expected
    stream, shown = StreamedText(toy.real, stops), ""
    for token in tokens[:ended]:
        shown += stream.add([token])
        if stream.stopped:
            break
    whole = decode(tokens[:ended]) if expected is None else expected[1]
    assert stream.rest(shown, whole) == whole and whole.startswith(shown)


@pytest.mark.parametrize("kind", KINDS)
def test_a_cut_character_is_one_replacement(toy, kind):
    """Complete characters before it stay, and text after broken bytes."""
    toy = toy(kind)
    world = [toy.bytes.index(bytes([byte])) for byte in "世界".encode()]
    decode = toy.real.decode
    assert [decode(world[:count]) for count in range(2, 7)] == ["�", "世", "世�", "世�", "世界"]
    assert (
        decode([*world[:5], toy.eos]) == "世�"
        and decode([*world[:4], toy.eos, *world[4:]]) == "世界"
    )
    last = toy.words(" is")
    assert (
        decode([world[1], *last]) == "� is" and decode([*world[:5], *last, *world[:2]]) == "世� is�"
    )


@pytest.mark.parametrize("kind", KINDS)
def test_a_continuation_keeps_its_first_space(toy, kind):
    """Without a prompt, or after special tokens alone, it is a text of its own."""
    toy = toy(kind)
    words = toy.words(" is") * 2
    own = "is is" if kind in LEAVES_OUT else " is is"
    texts = {(): own, (toy.eos,): own, (toy.eos, *words[:1], toy.eos): " is is"}
    byte = [toy.bytes.index(bytes([byte])) for byte in "世".encode()]
    texts |= {tuple(byte): " is is", (*byte, *byte[:2]): " is is"}
    for prompt, text in texts.items():
        stream = StreamedText(toy.real, Stops(), prompt)
        assert continue_after(toy.real.decode, prompt)(words) == text
        assert stream.add(words[:1]) + stream.add(words[1:]) == text


def test_a_prompt_may_end_inside_a_character(toy):
    """What it lacks does not come back as a character: the answer has bytes of none."""
    toy = toy("llama")
    one, two, three = (toy.bytes.index(bytes([byte])) for byte in "世".encode())
    prompt = [*toy.words(" is"), one, two]
    assert continue_after(toy.real.decode, prompt)([three, *toy.words(" is")]) == "� is"


@pytest.mark.parametrize("kind", KINDS)
def test_any_number_of_tokens_without_text_may_come_between(toy, kind):
    """Between the bytes of a character, and between a text's first space and its first word."""
    toy = toy(kind)
    silent, texts = [toy.eos] * 40, [b"a", b"\xe4", b"\xb8", b"\x96", b" is", b" is"]
    if kind != "byte_level":
        texts.insert(0, b" ")
    ids = [len(toy.bytes) - 1 - toy.bytes[::-1].index(text) for text in texts]
    for begin in (0, 1):
        tokens = [one for id in ids[begin:] for one in (*silent, id, *silent)]
        text = Detokenizer(toy.real.decode)
        joined = "".join(text.add([token]) for token in tokens)
        assert joined == toy.spell(tokens) == toy.real.decode(tokens)
    assert "世 is is" in joined


def count_decoded(decode):
    """Wrap `decode`; the list's entry is the number of tokens that it has decoded."""
    decoded = [0]

    def counting(ids):
        decoded[0] += len(ids)
        return decode(ids)

    return counting, decoded


def test_work_is_linear(tokenizer):
    """4,000 tokens in rounds of four: each token is decoded a few times, not thousands of times."""
    decode, decoded = count_decoded(tokenizer.decode)
    tokens = (tokenizer.encode(TEXTS[0] + TEXTS[1]) * 50)[:4000]
    one = Detokenizer(decode)
    for start in range(0, len(tokens), 4):
        one.add(tokens[start : start + 4])
    assert one.text + one.finish() == tokenizer.decode(tokens)
    assert decoded[0] < 10 * len(tokens)


@pytest.mark.parametrize("before", [[], ["a"]], ids=["first", "later"])
@pytest.mark.parametrize(
    "again",
    [[b""], [b"\xe4"], [b"\x96"], [b"\xe4", b""], [b"\xe4", b"\xb8", b"", b""], [b"\xb8\x96\xe4"]],
    ids=["no text", "begun", "lone", "begun, no text", "cut", "never complete"],
)
@pytest.mark.parametrize("kind", ["llama", "byte_level"])
def test_work_is_linear_where_no_text_is_complete(toy, kind, again, before):
    """Ends of text under `ignore_eos`, halves of characters, and both in turns."""
    toy = toy(kind)
    if not all(one in toy.bytes for one in again if one):
        pytest.skip("this kind has no tokens of several bytes")
    cycle = [toy.bytes.index(one) if one else toy.eos for one in again]
    tokens = [*toy.words(*before), *(cycle * 2000)[:2000]]
    decode, decoded = count_decoded(toy.real.decode)
    one = Detokenizer(decode)
    for token in tokens:
        one.add([token])
    assert one.text + one.finish() == toy.spell(tokens) == toy.real.decode(tokens)
    assert decoded[0] < 12 * len(tokens)
