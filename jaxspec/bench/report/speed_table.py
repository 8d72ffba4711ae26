"""The table that `jaxspec bench` prints: speed, acceptance and phases of every method."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from jaxspec.bench.measure.phases import PHASES
from jaxspec.bench.report.table import (
    NOTHING,
    CellFormat,
    Column,
    Table,
    fixed,
    interval,
    percent,
    show_agreement,
    show_value,
)


class _Figure(NamedTuple):
    """A column and the key of its value.

    Attributes:
      title: heading of the column.
      show: formats the column's values.
      key: key in a record; the column is left out if no record has it.
    """

    title: str
    key: str
    show: CellFormat = show_value


_FIGURES = (
    _Figure("T", "temperature", "{:g}".format),
    _Figure("domain", "domain"),
    _Figure("method", "method"),
    _Figure("tok/s", "tokens_per_second", fixed(1)),
    _Figure("with prefill", "tokens_per_second_with_prefill", fixed(1)),
    _Figure("speed-up", "speedup", fixed(2)),
    _Figure("[95%]", "speedup_ci", interval()),
    _Figure("accepted+bonus", "mean_acceptance_length", fixed(2)),
    _Figure("[95%] ", "mean_acceptance_length_ci", interval()),
    _Figure("against", "against"),
    _Figure("ratio", "acceptance_ratio", fixed(2)),
    _Figure("[95%]  ", "acceptance_ratio_ci", interval()),
    _Figure("= ar", "differing_prompts", show_agreement),
    _Figure("forwards", "forwards"),
    _Figure("ms/round", "ms_per_round", fixed(2)),
    *(_Figure(phase, f"ms_{phase}", fixed(2)) for phase in PHASES),
    _Figure("drafting", "draft_share", percent()),
)


def tabulate_speeds(
    records: Sequence[dict[str, Any]], drafters: dict[str, dict[str, Any]] | None = None
) -> Table:
    """Tabulate the records that `summarise` or `benchmark` returns.

    Args:
      drafters: {name: {"parameters", "training"}} from the report of `benchmark`; adds columns for
        each drafter's size and training.
    """
    figures = [one for one in _FIGURES if any(one.key in record for record in records)]
    columns = [Column(one.title, one.show) for one in figures]
    values: list[Callable[[dict[str, Any]], Any]] = [_reader(one.key) for one in figures]
    if drafters:
        columns += [Column("parameters", _show_count), Column("training", _show_training)]
        values += [_drafter_reader(drafters, key) for key in ("parameters", "training")]
    return Table(columns, [[value(record) for value in values] for record in records])


def _reader(key: str) -> Callable[[dict[str, Any]], Any]:
    return lambda record: record.get(key)


def _drafter_reader(
    drafters: dict[str, dict[str, Any]], key: str
) -> Callable[[dict[str, Any]], Any]:
    return lambda record: (drafters.get(record.get("drafter", "")) or {}).get(key)


def _show_count(number: float | None) -> str:
    if not number:
        return NOTHING
    units = ((1e9, "G"), (1e6, "M"), (1e3, "k"))
    for size, letter in units:
        if number >= size:
            return f"{number / size:.1f}{letter}"
    return f"{number:.0f}"


def _show_training(cost: dict[str, float] | None) -> str:
    if not cost:
        return NOTHING
    parts = [f"{cost['steps']:,} steps"] if "steps" in cost else []
    parts += [f"{_show_count(cost['tokens'])} tokens"] if "tokens" in cost else []
    return ", ".join([*parts, *([f"{cost['minutes']:.0f} min"] if "minutes" in cost else [])])
