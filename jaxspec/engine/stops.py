"""Find stop strings token by token, so that the cut does not depend on how tokens were drafted."""

from __future__ import annotations

from collections.abc import Callable


def find_stop(
    tokens: list[int], decode: Callable[[list[int]], str], stops: tuple[str, ...]
) -> tuple[int, str] | None:
    """Find the first token that completes a stop string, and the text before it.

    Returns:
      (number of tokens up to and including that one, text before the earliest stop string in it),
      or None.
    """
    if not any(stop in decode(tokens) for stop in stops):
        return None
    # Longer prefixes hold every stop string of shorter ones: bisect for the shortest that holds one.
    low, high = 1, len(tokens)
    while low < high:
        middle = (low + high) // 2
        if any(stop in decode(tokens[:middle]) for stop in stops):
            high = middle
        else:
            low = middle + 1
    text = decode(tokens[:low])
    return low, text[: min(text.find(stop) for stop in stops if stop in text)]


def safe_length(text: str, stops: tuple[str, ...]) -> int:
    """Characters of `text` that a stop string completed later cannot take back, nor a split UTF-8
    sequence change.
    """
    keep = len(text.rstrip("\N{REPLACEMENT CHARACTER}"))
    for stop in stops:
        for size in range(min(len(stop) - 1, len(text)), 0, -1):
            if text.endswith(stop[:size]):
                keep = min(keep, len(text) - size)
                break
    return keep
