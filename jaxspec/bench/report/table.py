"""A benchmark's records as text."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxspec.bench.report.summary import PHASES


def table(
    records: Sequence[dict[str, Any]], drafters: dict[str, dict[str, Any]] | None = None
) -> str:
    """Readable table of the records that `summarise` or `benchmark` returns.

    Args:
      drafters: {name: {"parameters", "training"}} as in the report of `benchmark`; adds what each
        drafter took to train.
    """
    columns = {
        name: cell
        for name, (needed, cell) in _COLUMNS.items()
        if any(needed in record for record in records)
    }
    if drafters:
        columns["parameters"] = lambda r: _count(
            (drafters.get(r.get("drafter")) or {}).get("parameters")
        )
        columns["training"] = lambda r: _training(
            (drafters.get(r.get("drafter")) or {}).get("training")
        )
    return align(
        [list(columns), *([cell(record) for cell in columns.values()] for record in records)]
    )


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows of as many cells each as lines of columns."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    aligned = ([cell.ljust(w) for cell, w in zip(row, widths, strict=True)] for row in rows)
    return "\n".join("  ".join(row).rstrip() for row in aligned)


def show(value: float | None, digits: int = 3) -> str:
    """A number with so many digits after the point, a dash where there is none."""
    return "-" if value is None else f"{value:.{digits}f}"


def _number(key: str, digits: int) -> tuple[str, Callable[[dict], str]]:
    return key, lambda record: show(record.get(key), digits)


def _interval(key: str) -> tuple[str, Callable[[dict], str]]:
    return key, lambda record: "[{}, {}]".format(
        *(show(bound, 2) for bound in record.get(key) or (None, None))
    )


def _percent(record: dict) -> str:
    share = record.get("draft_share")
    return "-" if share is None else f"{100 * share:.0f}%"


def _same(record: dict) -> str:
    return "yes" if record["identical_to_ar"] else f"NO ({record['differing_prompts']})"


def _count(number: float | None) -> str:
    if not number:
        return "-"
    unit, letter = next(
        (pair for pair in ((1e9, "G"), (1e6, "M"), (1e3, "k")) if number >= pair[0]), (1, "")
    )
    return f"{number / unit:.1f}{letter}" if letter else f"{number:.0f}"


def _training(cost: dict[str, float] | None) -> str:
    if not cost:
        return "-"
    parts = [f"{cost['steps']:,} steps"] if "steps" in cost else []
    parts += [f"{_count(cost['tokens'])} tokens"] if "tokens" in cost else []
    return ", ".join([*parts, *([f"{cost['minutes']:.0f} min"] if "minutes" in cost else [])])


# {heading: (key that some record must have, record -> cell)}
_COLUMNS: dict[str, tuple[str, Callable[[dict], str]]] = {
    "T": ("temperature", lambda record: f"{record['temperature']:g}"),
    "domain": ("domain", lambda record: record["domain"]),
    "method": ("method", lambda record: record["method"]),
    "tok/s": _number("tokens_per_second", 1),
    "with prefill": _number("tokens_per_second_with_prefill", 1),
    "speed-up": _number("speedup", 2),
    "[95%]": _interval("speedup_ci"),
    "accepted+bonus": _number("mean_acceptance_length", 2),
    "[95%] ": _interval("mean_acceptance_length_ci"),
    "= ar": ("identical_to_ar", _same),
    "forwards": ("forwards", lambda record: str(record["forwards"])),
    "ms/round": _number("ms_per_round", 2),
    **{phase: _number(f"ms_{phase}", 2) for phase in PHASES},
    "drafting": ("draft_share", _percent),
}
