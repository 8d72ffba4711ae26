"""Find stop strings token by token, so that the cut does not depend on how tokens were drafted."""

from __future__ import annotations

import bisect
import dataclasses
import itertools
import re
from collections.abc import Mapping, Sequence
from typing import Any

from jaxspec.call.arguments import split_stop
from jaxspec.call.text.detokenize import Decode, Detokenizer, settle

# Marks are the characters from here on: private ones of the last plane, which no text has.
_FIRST_MARK = 0x100000
# Special tokens of a string that may be spelled instead.
_SPELLED = 4


@dataclasses.dataclass(frozen=True)
class Stops:
    """Strings that end a text; false if there are none.

    Special tokens are left out of texts. Where a string holds the text of one, a mark stands for
    the token, and the string is looked for in a text with marks. Marks that it does not hold are
    nothing to it.

    Attributes:
      strings: what to look for.
      least: tokens before which no string counts: its last character must come after them.
      marks: {id of a special token: its mark}.
    """

    strings: tuple[str, ...] = ()
    least: int = 0
    marks: Mapping[int, str] = dataclasses.field(default_factory=dict, hash=False)

    def __bool__(self) -> bool:
        return bool(self.strings)

    def mark(self, decode: Decode) -> Decode:
        """Return a function that decodes tokens to a text with marks."""
        return _Marking(decode, self.marks) if self.marks else decode

    def clean(self, text: str) -> str:
        """Return a text without its marks."""
        return text.translate({ord(mark): None for mark in self.marks.values()})

    def find(self, text: str, known: int) -> int | None:
        """Find where the earliest string begins that ends after the first `known` characters.

        Args:
          text: with marks.
        """
        found = []
        for one in self.strings:
            seen, places = self._read(text, one)
            place = seen.find(one, max(0, bisect.bisect_left(places, known) - len(one) + 1))
            found += [places[place]] if place >= 0 else []
        return min(found, default=None)

    def safe_length(self, text: str) -> int:
        """Characters of a text with marks that later tokens cannot take back, by a string that they
        complete or by bytes of the last character.
        """
        keep = len(settle(text))
        for one in self.strings:
            seen, places = self._read(text, one)
            sizes = range(min(len(one) - 1, len(seen)), 0, -1)
            begun = next((size for size in sizes if seen.endswith(one[:size])), 0)
            keep = min(keep, places[len(seen) - begun])
        return keep

    def _read(self, text: str, string: str) -> tuple[str, Sequence[int]]:
        """Leave out the marks that a string does not hold; return the places of the rest too."""
        others = {mark for mark in self.marks.values() if mark not in string}
        if others.isdisjoint(text):
            return text, range(len(text) + 1)
        places = [place for place, one in enumerate(text) if one not in others]
        return "".join(text[place] for place in places), [*places, len(text)]


class _Marking:
    """Decodes tokens to a text with marks in the places of special tokens."""

    def __init__(self, decode: Decode, marks: Mapping[int, str]):
        self._decode, self._marks = decode, marks

    def __call__(self, tokens: Sequence[int]) -> str:
        if self._marks.keys().isdisjoint(tokens):
            return self._decode(tokens)
        text, pieces, begin = Detokenizer(self._decode), [], 0
        for place, token in enumerate(tokens):
            if token in self._marks:
                pieces += text.add(tokens[begin:place]), self._marks[token]
                begin = place + 1
        return "".join([*pieces, text.add(tokens[begin:]), text.finish()])


def read_stops(
    stop: Any, vocab_size: int, tokenizer: Any, least: int = 0
) -> tuple[tuple[int, ...], Stops]:
    """Read the argument `stop`.

    A string that is the text of a special token stands for the token too.

    Args:
      stop: strings, token ids, or several of these.
      tokenizer: the model's, or None.
      least: see `Stops`.

    Returns:
      (token ids, strings).

    Raises:
      TypeError, ValueError: as `arguments.split_stop` does; or there are strings and no tokenizer.
    """
    strings, ids = split_stop(stop, vocab_size)
    if not strings:
        return ids, Stops()
    if tokenizer is None:
        raise ValueError(
            "stop strings need a tokenizer, and this model has none: give stop token ids"
        )
    special = {text: id for text, id in tokenizer.special_ids.items() if text and id < vocab_size}
    ids += tuple(special[one] for one in strings if one in special)
    marks: dict[int, str] = {}
    marked = [
        spelled for one in strings if one not in special for spelled in _mark(one, special, marks)
    ]
    # What spells a special token without being one ends the text, too.
    return ids, Stops(tuple(dict.fromkeys((*strings, *marked))), least, marks)


def _mark(string: str, special: Mapping[str, int], marks: dict[int, str]) -> list[str]:
    """Return a string with marks in all places of special tokens, or in any of the first few.

    Args:
      special: ids of special tokens by their texts.
      marks: those given so far; new ones are added.
    """
    if not special:
        return []
    # Of texts that begin alike, the longest counts.
    known = "|".join(map(re.escape, sorted(special, key=len, reverse=True)))
    parts = re.split(f"({known})", string)
    spellings: list[tuple[str, ...]] = [(part,) for part in parts]
    for place, part in enumerate(parts):
        if place % 2:  # the text of a special token
            mark = marks.setdefault(special[part], chr(_FIRST_MARK + len(marks)))
            spellings[place] = (part, mark) if place < 2 * _SPELLED else (mark,)
    return ["".join(chosen) for chosen in itertools.product(*spellings)]


def find_stop(tokens: list[int], decode: Decode, stops: Stops) -> tuple[int, str] | None:
    """Find the first token that completes a stop string, and the text before it.

    A last character that lacks bytes completes none.

    Returns:
      (number of tokens up to and including that one, text before the earliest stop string in it),
      or None.
    """
    if not stops or len(tokens) <= stops.least:
        return None
    marked = stops.mark(decode)
    early = settle(marked(tokens[: stops.least]))

    def find(count: int) -> str | None:
        text = settle(marked(tokens[:count]))
        place = stops.find(text, len(early))
        return None if place is None else text[:place]

    before = find(len(tokens))
    if before is None:
        return None
    # Longer prefixes hold every stop string of shorter ones: bisect for the shortest that holds
    # one.
    low, high = stops.least + 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        found = find(middle)
        if found is None:
            low = middle + 1
        else:
            before, high = found, middle
    return low, stops.clean(before)
