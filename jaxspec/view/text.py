"""A traced decode as text for a terminal: a round's tree, and who made each token."""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Callable, Mapping, Sequence

from jaxspec.call.output import Output
from jaxspec.call.stream import StreamedRound
from jaxspec.call.text.detokenize import Decode, Detokenizer, continue_after
from jaxspec.view.pictures import ACCEPTED, BONUS, PREFILL, Picture, find_makers

_GREEN, _YELLOW, _DIM, _RESET = "\x1b[32m", "\x1b[33m", "\x1b[2m", "\x1b[0m"
_COLOURS = {PREFILL: _DIM, ACCEPTED: _GREEN, BONUS: _YELLOW}


def format_tree(
    shown: Picture, decode_token: Callable[[int], str] = str, *, colour: bool = False
) -> str:
    """Format a round's tree, one node per line.

    A line holds the token, its probability given the parent, the probability of its path, the
    target's probability given the parent if it is drawn, and whether it was accepted or cut.

    Args:
      shown: from `jaxspec.view.pictures`.
      decode_token: token id to text.
      colour: add ANSI colours.
    """
    lines = [(repr(decode_token(int(shown.token[0]))), "", "", "", "", None)]
    for row, prefix in _indent_rows(shown):
        if row is None:
            lines.append((prefix + repr(decode_token(shown.bonus)), "", "", "", "bonus", _YELLOW))
            continue
        state = "accepted" if shown.accepted[row] else "" if shown.verified[row] else "not verified"
        painted = _GREEN if shown.accepted[row] else None if shown.verified[row] else _DIM
        thinks = "" if shown.target is None else show_probability(shown.target[row])
        numbers = (f"{shown.conditional[row]:.2f}", f"{shown.path[row]:.2f}", thinks)
        lines.append((prefix + repr(decode_token(int(shown.token[row]))), *numbers, state, painted))
    width = max(len(line[0]) for line in lines)
    head, wide = ("", 0) if shown.target is None else ("  target", 8)
    text = [*filter(None, (shown.title, shown.gap_line)), f"{'':{width}}  given parent  path{head}"]
    for label, conditional, path, thinks, state, painted in lines:
        line = f"{label:{width}}  {conditional:>12}  {path:>4}{thinks:>{wide}}  {state}".rstrip()
        text.append(f"{painted}{line}{_RESET}" if colour and painted else line)
    return "\n".join(text)


def show_probability(value: float) -> str:
    """Format a probability of the target: small ones by their power of ten, NaN as a dash."""
    return "-" if math.isnan(value) else f"{value:.0e}" if value < 0.005 else f"{value:.2f}"


def format_tokens(out: Output, decode: Decode, *, colour: bool = False) -> str:
    """Format the text of a traced decode, with accepted drafted tokens marked, above a legend.

    Args:
      out: from `jaxspec.decode(…, trace=True)`.
      decode: token ids to text.
      colour: mark by ANSI colours. Otherwise brackets surround the drafted tokens of a round.

    Raises:
      ValueError: the decode was not traced.
    """
    made, text = find_makers(out), ""
    pieces = zip(made, split_text(out, decode), strict=True)
    for (kind, _), run in itertools.groupby(pieces, lambda pair: (pair[0].kind, pair[0].round)):
        text += _mark("".join(part for _, part in run), kind, colour)
    return f"{text}\n\n{format_legend(out, colour=colour)}"


def format_legend(out: Output, *, colour: bool = False) -> str:
    """Format one line with the number of rounds and of tokens by origin."""
    count = {kind: sum(one.kind == kind for one in find_makers(out)) for kind in _COLOURS}
    names = {
        ACCEPTED: "drafted and accepted",
        BONUS: "bonus, the target's own",
        PREFILL: "from the prefill",
    }
    counts = ", ".join(_mark(f"{count[kind]} {name}", kind, colour) for kind, name in names.items())
    length = out.stats.mean_acceptance_length
    return f"{counts}; {out.stats.rounds} rounds, {length:.2f} tokens per round with the bonus"


def _mark(text: str, kind: str, colour: bool) -> str:
    """Mark a piece of text by colour, or by brackets if it was drafted; empty text stays empty."""
    marks = (_COLOURS[kind], _RESET) if colour else ("[", "]") if kind == ACCEPTED else ("", "")
    return text.join(marks) if text else ""


def split_text(out: Output, decode: Decode) -> list[str]:
    """Return the text that each token of a traced decode adds.

    A prompt may precede it, and the first token then has the space that a text begins without.
    """
    tokens = [one.token for one in find_makers(out)]
    if out.text and not decode(tokens).startswith(out.text):
        decode = continue_after(decode, tokens)
    return split_pieces(tokens, decode)


def split_pieces(tokens: Sequence[int], decode: Decode) -> list[str]:
    """Return the text that each token adds.

    A character that is split over several tokens belongs to the last of them.
    """
    text = Detokenizer(decode)
    pieces = [text.add([token]) for token in tokens]
    return [*pieces[:-1], pieces[-1] + text.finish()] if pieces else []


def wants_colour(is_terminal: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Say whether to write colours: to a terminal, unless it is dumb or NO_COLOR is set.

    See https://no-color.org.
    """
    return is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def _indent_rows(shown: Picture) -> list[tuple[int | None, str]]:
    """List rows below the root, depth first, with the lines that lead to them; None is the bonus."""
    children: dict[int, list[int | None]] = {}
    for row, parent in enumerate(shown.parent.tolist()):
        children.setdefault(parent, []).append(row)
    if shown.bonus is not None:
        children.setdefault(shown.end, []).insert(0, None)
    found: list[tuple[int | None, str]] = []

    def add_children(row: int, before: str) -> None:
        own = children.get(row, [])
        for place, child in enumerate(own):
            last = place == len(own) - 1
            found.append((child, before + ("└─ " if last else "├─ ")))
            if child is not None:
                add_children(child, before + ("   " if last else "│  "))

    add_children(0, "")
    return found


_GREEN, _RESET = "\x1b[32m", "\x1b[0m"


def mark_round(part: StreamedRound, decode: Decode, *, colour: bool = False) -> str:
    """Return a round's text, with what the drafter proposed in green.

    The last token of a round is the target's own. Text that was held back until this round counts
    as drafted.

    Args:
      part: from `jaxspec.call.stream.stream_rounds`.
      decode: token ids to text.
      colour: add ANSI colours; otherwise the text is returned as it is.
    """
    text = part.text or ""
    if not (colour and part.drafted):
        return text
    own = continue_after(decode, part.tokens[:-1])(part.tokens[-1:])
    drafted = text.removesuffix(own)
    return f"{_GREEN}{drafted}{_RESET}{text[len(drafted) :]}" if drafted else text
