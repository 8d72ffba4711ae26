"""What a traced decode did, as data to draw and as text: a round's tree, and who proposed which
token.

Pictures of the same are in `jaxspec.view.plots`, both for notebooks in `jaxspec.view.notebook`.
"""

from __future__ import annotations

import dataclasses
import itertools
import os
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import numpy as np

from jaxspec.engine.output import DraftTree, Output, TracedRound

PREFILL, ACCEPTED, BONUS = "prefill", "accepted", "bonus"
_GREEN, _YELLOW, _DIM, _RESET = "\x1b[32m", "\x1b[33m", "\x1b[2m", "\x1b[0m"
_COLOURS = {PREFILL: _DIM, ACCEPTED: _GREEN, BONUS: _YELLOW}


class Maker(NamedTuple):
    """Where a generated token came from.

    Attributes:
      token: id. kind: `prefill`, `accepted` (drafted, and accepted by the target) or `bonus` (the
        target's own after a path).
      round: from 1; 0 is the prefill.
    """

    token: int
    kind: str
    round: int


@dataclasses.dataclass(frozen=True)
class Picture:
    """A round's tree as it is drawn: arrays [N], parents before their children, row 0 the root.

    Attributes:
      token, parent, depth: as in `Tree`.
      path: probability of the path to a node, given the root, that the drafter scored it with;
        conditional: given its parent.
      verified: rows that the target saw; others were cut by a policy.
      accepted: the root, and rows whose token was committed.
      end: the last accepted row. bonus: the target's own token behind it; None where a stop cut the
        round before.
      number: of the round, from 1.
    """

    token: np.ndarray
    parent: np.ndarray
    depth: np.ndarray
    path: np.ndarray
    conditional: np.ndarray
    verified: np.ndarray
    accepted: np.ndarray
    end: int
    bonus: int | None
    number: int | None

    @property
    def title(self) -> str:
        """One line on the round."""
        drafted = int(self.accepted.sum()) - 1
        cut = "" if self.verified.all() else f" of {len(self.token)}"
        head = "" if self.number is None else f"round {self.number}: "
        bonus = ", then the bonus" if self.bonus is not None else ""
        return f"{head}{int(self.verified.sum())}{cut} rows verified, {drafted} drafted accepted{bonus}"


def makers(out: Output) -> list[Maker]:
    """Who made each token of a traced decode, in the order of `Output.tokens`.

    Raises:
      ValueError: the decode was not traced.
    """
    found = [Maker(out.tokens[0], PREFILL, 0)]
    for number, traced in enumerate(_rounds(out), 1):
        tokens = out.tokens[len(found) : len(found) + len(traced.path)]
        if tokens:
            kinds = [ACCEPTED] * (len(tokens) - 1) + [
                BONUS if _accepted(traced, tokens)[1] is not None else ACCEPTED
            ]
            found += [Maker(token, kind, number) for token, kind in zip(tokens, kinds, strict=True)]
    return found


def picture(out: Output, number: int, whole: DraftTree | None = None) -> Picture:
    """Round `number` (from 1) of a traced decode.

    Args:
      whole: the tree before a policy cut it, see `jaxspec.view.unpruned`; None: what was verified
        is all there is.

    Raises:
      ValueError: the decode was not traced, or has no such round.
    """
    rounds = _rounds(out)
    if not 1 <= number <= len(rounds):
        raise ValueError(
            f"round is {number}: this text took {len(rounds)} rounds, so give 1 to {len(rounds)}"
        )
    start = 1 + sum(len(traced.path) for traced in rounds[: number - 1])
    traced = rounds[number - 1]
    return picture_of(
        traced, whole, number=number, tokens=out.tokens[start : start + len(traced.path)]
    )


def picture_of(
    traced: TracedRound,
    whole: DraftTree | None = None,
    *,
    number: int | None = None,
    tokens: Sequence[int] | None = None,
) -> Picture:
    """One round.

    Args:
      whole: as of `picture`. number: from 1. tokens: what the round emitted; None: the path's and
        the bonus.
    """
    tree = traced.tree
    tokens = (
        [*(int(tree.token[row]) for row in traced.path[1:]), traced.bonus]
        if tokens is None
        else tokens
    )
    rows, bonus = _accepted(traced, tokens)
    accepted, end = np.isin(np.arange(len(tree.token)), rows), rows[-1]
    verified = np.ones(len(tree.token), bool)
    if whole is not None:
        tree, at, verified = _joined(tree, whole)
        accepted = np.isin(np.arange(len(tree.token)), at[accepted])
        end = int(at[end])
    above = np.where(tree.parent >= 0, tree.logprob[np.maximum(tree.parent, 0)], 0.0)
    probabilities = (
        np.exp(np.minimum(score.astype(float), 0.0))
        for score in (tree.logprob, tree.logprob - above)
    )
    return Picture(
        tree.token, tree.parent, tree.depth, *probabilities, verified, accepted, end, bonus, number
    )


def tree_text(
    shown: Picture, decode_token: Callable[[int], str] = str, *, colour: bool = False
) -> str:
    """A round's tree, a node a line: token, probability given the parent and of the path, and what
    became of it.
    """
    lines = [(repr(decode_token(int(shown.token[0]))), "", "", "", None)]
    for row, prefix in _indented(shown):
        if row is None:
            lines.append((prefix + repr(decode_token(shown.bonus)), "", "", "bonus", _YELLOW))
            continue
        state = "accepted" if shown.accepted[row] else "" if shown.verified[row] else "not verified"
        painted = _GREEN if shown.accepted[row] else None if shown.verified[row] else _DIM
        numbers = (f"{shown.conditional[row]:.2f}", f"{shown.path[row]:.2f}")
        lines.append((prefix + repr(decode_token(int(shown.token[row]))), *numbers, state, painted))
    width = max(len(line[0]) for line in lines)
    text = [shown.title, f"{'':{width}}  given parent  path"]
    for label, conditional, path, state, painted in lines:
        line = f"{label:{width}}  {conditional:>12}  {path:>4}  {state}".rstrip()
        text.append(f"{painted}{line}{_RESET}" if colour and painted else line)
    return "\n".join(text)


def token_text(out: Output, decode: Callable[[Sequence[int]], str], *, colour: bool = False) -> str:
    """The text of a traced decode with accepted drafted tokens told from the target's own, and a
    legend below.

    Without colour, drafted tokens are in brackets, those of a round in one pair.
    """
    made, text = makers(out), ""
    pieces = token_pieces([one.token for one in made], decode)
    for (kind, _), run in itertools.groupby(
        zip(made, pieces, strict=True), lambda pair: (pair[0].kind, pair[0].round)
    ):
        text += _marked("".join(part for _, part in run), kind, colour)
    return f"{text}\n\n{legend(out, colour=colour)}"


def legend(out: Output, *, colour: bool = False) -> str:
    """One line: how many tokens each maker gave, and the rounds."""
    count = {kind: sum(one.kind == kind for one in makers(out)) for kind in _COLOURS}
    names = {
        ACCEPTED: "drafted and accepted",
        BONUS: "bonus, the target's own",
        PREFILL: "from the prefill",
    }
    told = ", ".join(_marked(f"{count[kind]} {name}", kind, colour) for kind, name in names.items())
    return f"{told}; {out.stats.rounds} rounds, {out.stats.mean_acceptance_length:.2f} tokens a round with the bonus"


def _marked(text: str, kind: str, colour: bool) -> str:
    """Text of a maker, by colour or with brackets around what was drafted; what is empty stays
    so.
    """
    marks = (_COLOURS[kind], _RESET) if colour else ("[", "]") if kind == ACCEPTED else ("", "")
    return text.join(marks) if text else ""


def token_pieces(tokens: Sequence[int], decode: Callable[[Sequence[int]], str]) -> list[str]:
    """The text that each token adds; a character split over several tokens is the last one's."""
    pieces, start, shown = [], 0, ""
    for end in range(1, len(tokens) + 1):
        text = decode(tokens[start:end])
        if text.endswith("\N{REPLACEMENT CHARACTER}") and end < len(tokens):
            pieces.append("")
            continue
        pieces.append(text[len(shown) :])
        # Decoded behind the token before it, for some tokenizers drop the space that a text begins
        # with.
        start, shown = end - 1, decode(tokens[end - 1 : end])
    return pieces


def wants_colour(is_terminal: bool, environment: Mapping[str, str] = os.environ) -> bool:
    """Whether to write escape codes: to a terminal, unless NO_COLOR is set (https://no-color.org)
    or the terminal is dumb.
    """
    return is_terminal and not environment.get("NO_COLOR") and environment.get("TERM") != "dumb"


def _rounds(out: Output) -> list[TracedRound]:
    if out.rounds is None:
        raise ValueError("this decode kept no rounds: call decode with trace=True")
    return out.rounds


def _accepted(traced: TracedRound, tokens: Sequence[int]) -> tuple[list[int], int | None]:
    """The accepted rows, root first, and the bonus token, of a round that emitted `tokens`.

    A round that a stop or the limit cut ends in a drafted token where a child of its path's end
    holds it; else in the bonus.
    """
    rows, tree = list(traced.path[: len(tokens)]), traced.tree
    last = np.flatnonzero((tree.parent == rows[-1]) & (tree.token == tokens[-1]))
    return (rows, int(tokens[-1])) if not len(last) else ([*rows, int(last[0])], None)


def _joined(cut: DraftTree, whole: DraftTree) -> tuple[DraftTree, np.ndarray, np.ndarray]:
    """`whole` with the rows of `cut`, where each of these rows is, and which rows they are.

    Nodes are the same if their paths are: a policy that stops drafting early may verify nodes that
    the whole tree has not.
    """
    where = {path: row for row, path in enumerate(_paths(whole))}
    fields = {name: list(getattr(whole, name)) for name in ("token", "parent", "depth", "logprob")}
    at = np.zeros(len(cut.token), int)
    for row, path in enumerate(_paths(cut)):
        if path not in where:
            where[path] = len(fields["token"])
            for name in ("token", "depth", "logprob"):
                fields[name].append(getattr(cut, name)[row])
            fields["parent"].append(at[cut.parent[row]])
        at[row] = where[path]
    joined = DraftTree(**{name: np.asarray(values) for name, values in fields.items()})
    return joined, at, np.isin(np.arange(len(joined.token)), at)


def _paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """The drafted tokens from the root to each row."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token.tolist(), tree.parent.tolist(), strict=True):
        paths.append(() if parent < 0 else (*paths[parent], token))
    return paths


def _indented(shown: Picture) -> list[tuple[int | None, str]]:
    """Rows below the root, depth first, with the lines that lead to them; None is the bonus."""
    children: dict[int, list[int | None]] = {}
    for row, parent in enumerate(shown.parent.tolist()):
        children.setdefault(parent, []).append(row)
    if shown.bonus is not None:
        children.setdefault(shown.end, []).insert(0, None)
    found: list[tuple[int | None, str]] = []

    def below(row: int, before: str) -> None:
        own = children.get(row, [])
        for place, child in enumerate(own):
            last = place == len(own) - 1
            found.append((child, before + ("└─ " if last else "├─ ")))
            if child is not None:
                below(child, before + ("   " if last else "│  "))

    below(0, "")
    return found
