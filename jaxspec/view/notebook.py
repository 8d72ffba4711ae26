"""Notebook views of a traced decode: a round's tree, and the text with drafted tokens told from the
target's own.

`tree(out, round, params)` and `text(out, params)` return objects that a notebook shows as pictures,
and `print` as text.
"""

from __future__ import annotations

import dataclasses
import html
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxspec.engine.output import DraftTree, Output
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.view.pictures import (
    ACCEPTED,
    BONUS,
    PREFILL,
    Picture,
    legend,
    makers,
    picture,
    token_pieces,
    token_text,
    tree_text,
)
from jaxspec.view.plots import plot_tree, tree_size

# Black on these is readable on light and dark pages.
_BACKGROUNDS = {ACCEPTED: "#b7e4c0", BONUS: "#ffd8a0", PREFILL: "#d9d9d9"}


@dataclasses.dataclass(frozen=True, repr=False)
class TreeView:
    """A round's draft tree."""

    shown: Picture
    decode_token: Callable[[int], str]

    def __repr__(self) -> str:
        return tree_text(self.shown, self.decode_token)

    def _repr_svg_(self) -> str:
        """The tree as SVG, drawn by matplotlib."""
        written = io.StringIO()
        self._save(written, "svg")
        return written.getvalue()

    def save(self, path: str | Path) -> None:
        """Write it as .svg, .png, .pdf (matplotlib) or .txt.

        Raises:
          ValueError: another ending.
        """
        path = Path(path)
        if path.suffix == ".txt":
            path.write_text(f"{self}\n", encoding="utf-8")
        elif path.suffix in (".svg", ".png", ".pdf"):
            self._save(path, path.suffix[1:])
        else:
            raise ValueError(f"{path}: a tree is written as .svg, .png, .pdf or .txt")

    def _save(self, file, form: str) -> None:
        import matplotlib
        from matplotlib.figure import Figure

        figure = Figure(figsize=tree_size(self.shown))
        plot_tree(self.shown, self.decode_token, figure.subplots())
        with warnings.catch_warnings(), matplotlib.rc_context({"svg.fonttype": "none"}):
            # A token may be in a script that matplotlib's font has not; the viewer's may have it.
            warnings.filterwarnings("ignore", "Glyph")
            figure.savefig(file, format=form, bbox_inches="tight", dpi=150)


@dataclasses.dataclass(frozen=True, repr=False)
class TextView:
    """A generated text, its tokens coloured by who made them."""

    out: Output
    decode: Callable[[Sequence[int]], str]

    def __repr__(self) -> str:
        return token_text(self.out, self.decode)

    def _repr_html_(self) -> str:
        made = makers(self.out)
        spans = [
            _span(piece, one.kind, f"{one.kind}, round {one.round}" if one.round else one.kind)
            for one, piece in zip(
                made, token_pieces([one.token for one in made], self.decode), strict=True
            )
        ]
        marks = " ".join(_span(f" {kind} ", kind) for kind in (ACCEPTED, BONUS, PREFILL))
        body = f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}</div>'
        return f"{body}<p>{marks} {html.escape(legend(self.out))}</p>"


def tree(
    out: Output, round: int | None = None, params=None, *, whole: DraftTree | None = None
) -> TreeView:
    """View of one round's draft tree.

    Args:
      out: from `jaxspec.decode(…, trace=True)`.
      round: from 1; None: the one that committed the most tokens.
      params: of the decode, for the texts of tokens; None: nodes show token ids.
      whole: the tree before a policy cut it, from `jaxspec.view.unpruned.uncut_tree`.

    Raises:
      ValueError: the decode was not traced, or has no such round.
    """
    decode = _decoder(params)
    return TreeView(
        picture(out, longest_round(out) if round is None else round, whole),
        lambda token: decode([token]),
    )


def text(out: Output, params=None) -> TextView:
    """View of the text of `jaxspec.decode(…, trace=True)`; without `params` of token ids.

    Raises:
      ValueError: the decode was not traced.
    """
    makers(out)
    return TextView(out, _decoder(params))


def longest_round(out: Output) -> int:
    """Number, from 1, of the round that committed the most tokens, the first of several.

    Raises:
      ValueError: no round was kept.
    """
    if not out.rounds:
        raise ValueError(
            "this decode kept no rounds: call decode with trace=True, for more than one token"
        )
    lengths = [len(traced.path) for traced in out.rounds]
    return 1 + lengths.index(max(lengths))


def _decoder(params) -> Callable[[Sequence[int]], str]:
    tokenizer = (
        load_tokenizer(params.spec.tokenizer)
        if params is not None and params.spec.tokenizer
        else None
    )
    return tokenizer.decode if tokenizer is not None else lambda ids: " ".join(map(str, ids))


def _span(piece: str, kind: str, title: str | None = None) -> str:
    hint = f' title="{html.escape(title)}"' if title else ""
    return f'<span style="background:{_BACKGROUNDS[kind]};color:black"{hint}>{html.escape(piece)}</span>'
