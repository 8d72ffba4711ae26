"""The one table of all reports: typed columns and rows, printed as plain text or as Markdown."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import Any, Literal

CellFormat = Callable[[Any], str]
# Text of a cell without a value.
NOTHING = "-"


def show_value(value: Any) -> str:
    """Format a value by `str`; None as a dash."""
    return NOTHING if value is None else str(value)


@dataclasses.dataclass(frozen=True)
class Column:
    """A column of a table.

    Attributes:
      title: its heading.
      show: a row's value -> the text of its cell, see the formats below.
      align: the side on which text output aligns its cells.
    """

    title: str
    show: CellFormat = show_value
    align: Literal["left", "right"] = "left"


@dataclasses.dataclass(frozen=True)
class Table:
    """Rows of values under columns.

    Attributes:
      columns: headings and formats, left to right.
      rows: one value per column each.
    """

    columns: Sequence[Column]
    rows: Sequence[Sequence[Any]]

    def cells(self) -> list[list[str]]:
        """Return the heading and every row as texts.

        Raises:
          ValueError: the number of values in a row is not the number of columns.
        """
        body = [
            [column.show(value) for column, value in zip(self.columns, row, strict=True)]
            for row in self.rows
        ]
        return [[column.title for column in self.columns], *body]

    def to_text(self) -> str:
        """Return lines with aligned columns, two spaces apart."""
        cells = self.cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
        return "\n".join(self._line(row, widths) for row in cells)

    def to_markdown(self) -> str:
        """Return a Markdown table; vertical bars in cells are escaped."""
        head, *body = (
            "| " + " | ".join(cell.replace("|", "\\|") for cell in row) + " |"
            for row in self.cells()
        )
        rules = (" ---: |" if column.align == "right" else " --- |" for column in self.columns)
        return "\n".join([head, "|" + "".join(rules), *body])

    def _line(self, row: Sequence[str], widths: Sequence[int]) -> str:
        padded = (
            cell.rjust(width) if column.align == "right" else cell.ljust(width)
            for column, cell, width in zip(self.columns, row, widths, strict=True)
        )
        return "  ".join(padded).rstrip()


def tabulate(titles: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """Make a table whose cells are shown by `show_value`."""
    return Table([Column(title) for title in titles], rows)


def fixed(digits: int = 3, unit: str = "") -> CellFormat:
    """Make a format of numbers with `digits` decimals and a unit; None is a dash."""
    return lambda value: NOTHING if value is None else f"{value:.{digits}f}{unit}"


def percent(digits: int = 0) -> CellFormat:
    """Make a format of shares of 1 as percent; None is a dash."""
    return lambda share: NOTHING if share is None else f"{100 * share:.{digits}f}%"


def interval(digits: int = 2) -> CellFormat:
    """Make a format of pairs of bounds as `[low, high]`; None is a pair of dashes."""
    show = fixed(digits)
    return lambda bounds: "[{}, {}]".format(*map(show, bounds or (None, None)))


def with_interval(digits: int = 2) -> CellFormat:
    """Make a format of (value, bounds) as `value [low, high]`; bounds of None are left out."""
    show, bounded = fixed(digits), interval(digits)

    def join(pair: tuple[float | None, Sequence[float] | None]) -> str:
        value, bounds = pair
        return show(value) + ("" if bounds is None else f" {bounded(bounds)}")

    return join


def show_agreement(differing: int) -> str:
    """Format the number of prompts with other tokens than those of autoregressive decoding."""
    return "yes" if differing == 0 else f"NO ({differing})"
