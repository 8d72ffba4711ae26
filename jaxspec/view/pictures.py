"""A traced decode as data to draw: a round's tree, and who made each token.

`jaxspec.view.text` prints this data, `jaxspec.view.plots` plots it, and `jaxspec.view.notebook`
shows it in notebooks.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from jaxspec.call.output import DraftTree, Output, TracedRound
from jaxspec.view.rank1_gap import measure_rank1_gap

PREFILL, ACCEPTED, BONUS = "prefill", "accepted", "bonus"


class Maker(NamedTuple):
    """Origin of a generated token.

    Attributes:
      token: token id.
      kind: `prefill`, `accepted` (drafted, and accepted by the target) or `bonus` (the target's own
        token after the accepted path).
      round: number of the round, from 1; 0 for the prefill.
    """

    token: int
    kind: str
    round: int


@dataclasses.dataclass(frozen=True)
class Picture:
    """A round's tree, ready to draw. Arrays have N rows; row 0 is the root, parents come first.

    Attributes:
      token: int32 [N], as in `Tree`.
      parent: int32 [N], as in `Tree`.
      depth: int32 [N], as in `Tree`.
      path: float [N], the drafter's probability of the path from the root to each node.
      conditional: float [N], the drafter's probability of each node given its parent.
      verified: bool [N], rows that the target verified; a policy cut the others.
      accepted: bool [N], the root and the rows whose token was committed.
      end: the last accepted row.
      bonus: the target's own token after `end`; None if the sequence ended before it.
      number: number of the round, from 1; None if unknown.
      target: float [N], the target's probability of each node given its parent, NaN where it is not
        known; None not to draw it.
      gap: float [D], the rank-1 gap of the first d drafted tokens in nats; None not to draw it.
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
    target: np.ndarray | None = None
    gap: np.ndarray | None = None

    @property
    def title(self) -> str:
        """Return one line that describes the round."""
        drafted = int(self.accepted.sum()) - 1
        cut = "" if self.verified.all() else f" of {len(self.token)}"
        head = "" if self.number is None else f"round {self.number}: "
        bonus = ", then the bonus" if self.bonus is not None else ""
        return f"{head}{int(self.verified.sum())}{cut} rows verified, {drafted} drafted accepted{bonus}"

    @property
    def gap_line(self) -> str | None:
        """Return one line with the rank-1 gap by depth, or None where it is not drawn."""
        if self.gap is None:
            return None
        return f"rank-1 gap by depth, nats: {' '.join(f'{value:+.2f}' for value in self.gap)}"


def find_makers(out: Output) -> list[Maker]:
    """Find who made each token of a traced decode, in the order of `Output.tokens`.

    Raises:
      ValueError: the decode was not traced.
    """
    found = [Maker(out.tokens[0], PREFILL, 0)]
    for number, traced in enumerate(_get_rounds(out), 1):
        tokens = out.tokens[len(found) : len(found) + len(traced.path)]
        if tokens:
            kinds = [ACCEPTED] * (len(tokens) - 1) + [
                BONUS if _find_accepted(traced, tokens)[1] is not None else ACCEPTED
            ]
            found += [Maker(token, kind, number) for token, kind in zip(tokens, kinds, strict=True)]
    return found


def make_picture(
    out: Output, number: int, whole: DraftTree | None = None, *, target: bool = False
) -> Picture:
    """Make the picture of one round of a traced decode.

    Args:
      out: from `jaxspec.decode(…, trace=True)`.
      number: number of the round, from 1.
      whole: the tree before a policy cut it, from `jaxspec.view.unpruned`. None if nothing was cut.
      target: draw the target's probabilities and the rank-1 gap too.

    Raises:
      ValueError: the decode was not traced, or took fewer rounds.
    """
    rounds = _get_rounds(out)
    if not 1 <= number <= len(rounds):
        raise ValueError(
            f"round is {number}: this decode took {len(rounds)} rounds, so give 1 to {len(rounds)}"
        )
    start = 1 + sum(len(traced.path) for traced in rounds[: number - 1])
    traced = rounds[number - 1]
    tokens = out.tokens[start : start + len(traced.path)]
    return make_round_picture(traced, whole, number=number, tokens=tokens, target=target)


def make_round_picture(
    traced: TracedRound,
    whole: DraftTree | None = None,
    *,
    number: int | None = None,
    tokens: Sequence[int] | None = None,
    target: bool = False,
) -> Picture:
    """Make the picture of a traced round.

    Args:
      traced: an entry of `Output.rounds`.
      whole: the tree before a policy cut it; None if nothing was cut.
      number: number of the round, from 1; None if unknown.
      tokens: what the round emitted (default: the path's tokens and the bonus).
      target: draw the target's probabilities and the rank-1 gap too; the trace is then a
        `decode`'s.
    """
    tree = traced.tree
    gap = measure_rank1_gap(tree) if target else None
    known = tree.target_logprob
    tokens = (
        [*(int(tree.token[row]) for row in traced.path[1:]), traced.bonus]
        if tokens is None
        else tokens
    )
    rows, bonus = _find_accepted(traced, tokens)
    accepted, end = np.isin(np.arange(len(tree.token)), rows), rows[-1]
    verified = np.ones(len(tree.token), bool)
    if whole is not None:
        tree, at, verified = _join(tree, whole)
        accepted = np.isin(np.arange(len(tree.token)), at[accepted])
        end = int(at[end])
        if known is not None:
            known, own = np.full(len(tree.token), np.nan), known
            known[at] = own
    above = np.where(tree.parent >= 0, tree.logprob[np.maximum(tree.parent, 0)], 0.0)
    probabilities = (
        np.exp(np.minimum(score.astype(float), 0.0))
        for score in (tree.logprob, tree.logprob - above)
    )
    drawn = (tree.token, tree.parent, tree.depth, *probabilities, verified, accepted)
    asked = np.exp(known) if target and known is not None else None
    return Picture(*drawn, end, bonus, number, asked, gap)


def _get_rounds(out: Output) -> list[TracedRound]:
    if out.rounds is None:
        raise ValueError("this decode kept no rounds: call decode with trace=True")
    return out.rounds


def _find_accepted(traced: TracedRound, tokens: Sequence[int]) -> tuple[list[int], int | None]:
    """Return the accepted rows, root first, and the bonus token (or None) of a round.

    If a stop or the token limit cut the round, its last token is drafted: a child of the path's
    last row holds it. Otherwise the last token is the bonus.
    """
    rows, tree = list(traced.path[: len(tokens)]), traced.tree
    last = np.flatnonzero((tree.parent == rows[-1]) & (tree.token == tokens[-1]))
    return (rows, int(tokens[-1])) if not len(last) else ([*rows, int(last[0])], None)


def _join(cut: DraftTree, whole: DraftTree) -> tuple[DraftTree, np.ndarray, np.ndarray]:
    """Add the rows of `cut` to `whole`.

    Nodes with equal paths are equal. A policy that stops drafting early may verify nodes that the
    whole tree does not have.

    Returns:
      The joined tree, the index in it of each row of `cut`, and a mask of these rows.
    """
    where = {path: row for row, path in enumerate(_list_paths(whole))}
    fields = {name: list(getattr(whole, name)) for name in ("token", "parent", "depth", "logprob")}
    at = np.zeros(len(cut.token), int)
    for row, path in enumerate(_list_paths(cut)):
        if path not in where:
            where[path] = len(fields["token"])
            for name in ("token", "depth", "logprob"):
                fields[name].append(getattr(cut, name)[row])
            fields["parent"].append(at[cut.parent[row]])
        at[row] = where[path]
    joined = DraftTree(**{name: np.asarray(values) for name, values in fields.items()})
    return joined, at, np.isin(np.arange(len(joined.token)), at)


def _list_paths(tree: DraftTree) -> list[tuple[int, ...]]:
    """Return the drafted tokens from the root to each row."""
    paths: list[tuple[int, ...]] = []
    for token, parent in zip(tree.token.tolist(), tree.parent.tolist(), strict=True):
        paths.append(() if parent < 0 else (*paths[parent], token))
    return paths
