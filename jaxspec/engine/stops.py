"""Find stop strings token by token, so that the cut does not depend on how tokens were drafted."""

from __future__ import annotations

from jaxspec.engine.detokenize import Decode, settle


def find_stop(tokens: list[int], decode: Decode, stops: tuple[str, ...]) -> tuple[int, str] | None:
    """Find the first token that completes a stop string, and the text before it.

    A last character that lacks bytes completes none.

    Returns:
      (number of tokens up to and including that one, text before the earliest stop string in it),
      or None.
    """

    def holds(count: int) -> bool:
        text = settle(decode(tokens[:count]))
        return any(stop in text for stop in stops)

    if not stops or not holds(len(tokens)):
        return None
    # Longer prefixes hold every stop string of shorter ones: bisect for the shortest that holds one.
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle + 1, high)
    text = settle(decode(tokens[:low]))
    return low, text[: min(text.find(stop) for stop in stops if stop in text)]


def safe_length(text: str, stops: tuple[str, ...]) -> int:
    """Characters of `text` that later tokens cannot take back, by a stop string that they complete
    or by bytes of the last character.
    """
    keep = len(settle(text))
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                keep = min(keep, len(text) - size)
                break
    return keep
