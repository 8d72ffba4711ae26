"""Notebook views of a traced decode: a round's tree, and the text with drafted tokens marked.

`show_tree(out, round, params)` and `show_text(out, params)` return objects that notebooks display
as pictures and `print` shows as text.
"""

from __future__ import annotations

import dataclasses
import html
import io
import warnings
from collections.abc import Callable, Sequence
from pathlib import Path

from jaxspec.call.output import DraftTree, Output
from jaxspec.core.params import Params
from jaxspec.io.text.tokenizer import load_tokenizer
from jaxspec.view.pictures import ACCEPTED, BONUS, PREFILL, Picture, find_makers, make_picture
from jaxspec.view.plots import measure_tree, plot_tree
from jaxspec.view.text import format_legend, format_tokens, format_tree, split_text

# Black text on these colours is readable on light and dark pages.
_BACKGROUNDS = {ACCEPTED: "#b7e4c0", BONUS: "#ffd8a0", PREFILL: "#d9d9d9"}


@dataclasses.dataclass(frozen=True, repr=False)
class TreeView:
    """A round's draft tree."""

    shown: Picture
    decode_token: Callable[[int], str]

    def __repr__(self) -> str:
        return format_tree(self.shown, self.decode_token)

    def _repr_svg_(self) -> str:
        """Return the tree as SVG, drawn by matplotlib."""
        written = io.StringIO()
        self._save(written, "svg")
        return written.getvalue()

    def save(self, path: str | Path) -> None:
        """Write the tree to a .svg, .png, .pdf (these need matplotlib) or .txt file.

        Raises:
          ValueError: the file name ends differently.
        """
        path = Path(path)
        if path.suffix == ".txt":
            path.write_text(f"{self}\n", encoding="utf-8")
        elif path.suffix in (".svg", ".png", ".pdf"):
            self._save(path, path.suffix[1:])
        else:
            raise ValueError(f"{path}: give a file name that ends in .svg, .png, .pdf or .txt")

    def _save(self, file: Path | io.StringIO, form: str) -> None:
        import matplotlib
        from matplotlib.figure import Figure

        figure = Figure(figsize=measure_tree(self.shown))
        plot_tree(self.shown, self.decode_token, figure.subplots())
        # Equal trees give equal files.
        settings = {"svg.fonttype": "none", "svg.hashsalt": "jaxspec"}
        metadata = {"Date": None} if form == "svg" else None
        with warnings.catch_warnings(), matplotlib.rc_context(settings):
            # matplotlib's font may lack the script of a token; the viewer's font may have it.
            warnings.filterwarnings("ignore", "Glyph")
            figure.savefig(file, format=form, bbox_inches="tight", dpi=150, metadata=metadata)


@dataclasses.dataclass(frozen=True, repr=False)
class TextView:
    """A generated text with its tokens coloured by who made them."""

    out: Output
    decode: Callable[[Sequence[int]], str]

    def __repr__(self) -> str:
        return format_tokens(self.out, self.decode)

    def _repr_html_(self) -> str:
        pieces = zip(find_makers(self.out), split_text(self.out, self.decode), strict=True)
        spans = [
            _make_span(piece, one.kind, f"{one.kind}, round {one.round}" if one.round else one.kind)
            for one, piece in pieces
        ]
        marks = " ".join(_make_span(f" {kind} ", kind) for kind in (ACCEPTED, BONUS, PREFILL))
        body = f'<div style="white-space:pre-wrap;font-family:monospace">{"".join(spans)}</div>'
        return f"{body}<p>{marks} {html.escape(format_legend(self.out))}</p>"


def show_tree(
    out: Output,
    round: int | None = None,
    params: Params | None = None,
    *,
    whole: DraftTree | None = None,
    target: bool = False,
) -> TreeView:
    """Show one round's draft tree.

    Args:
      out: from `jaxspec.decode(…, trace=True)`.
      round: number of the round, from 1 (default: the one that committed the most tokens).
      params: what was decoded with, for the text of tokens (default: show token ids).
      whole: the tree before a policy cut it, from `jaxspec.view.unpruned.grow_unpruned_tree`.
      target: show the target's probabilities and the rank-1 gap too.

    Raises:
      ValueError: the decode was not traced, or took fewer rounds.
    """
    decode, number = _make_decoder(params), find_longest_round(out) if round is None else round
    return TreeView(make_picture(out, number, whole, target=target), lambda token: decode([token]))


def show_text(out: Output, params: Params | None = None) -> TextView:
    """Show the text of a traced decode with drafted tokens marked.

    Args:
      out: from `jaxspec.decode(…, trace=True)`.
      params: what was decoded with, for the text of tokens (default: show token ids).

    Raises:
      ValueError: the decode was not traced.
    """
    find_makers(out)
    return TextView(out, _make_decoder(params))


def find_longest_round(out: Output) -> int:
    """Return the number, from 1, of the first round that committed the most tokens.

    Raises:
      ValueError: the decode was not traced.
    """
    if not out.rounds:
        raise ValueError(
            "this decode kept no rounds: call decode with trace=True, for more than one token"
        )
    lengths = [len(traced.path) for traced in out.rounds]
    return 1 + lengths.index(max(lengths))


def _make_decoder(params: Params | None) -> Callable[[Sequence[int]], str]:
    tokenizer = (
        load_tokenizer(params.spec.tokenizer)
        if params is not None and params.spec.tokenizer
        else None
    )
    return tokenizer.decode if tokenizer is not None else lambda ids: " ".join(map(str, ids))


def _make_span(piece: str, kind: str, title: str | None = None) -> str:
    hint = f' title="{html.escape(title)}"' if title else ""
    return f'<span style="background:{_BACKGROUNDS[kind]};color:black"{hint}>{html.escape(piece)}</span>'
