"""The text report of `python -m benchmarks policies`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.bench.report.table import Column, Table, fixed, interval, percent, show_agreement


def render_policies(report: dict[str, Any]) -> str:
    """Render a table per temperature and domain: policies' speed-ups over `ar` by each clock."""
    device = report["device"]
    head = (
        f"{report['repeats']} repeats, {report['dtype']} on {device['kind']} ({device['cpus']} "
        "host cores), jax "
        f"{report['versions']['jax']}; speed-ups over ar, tokens over seconds of all prompts, "
        "with intervals of 95 % over the "
        "prompts; mean: of the prompts' own ratios; own: the policy's share of the time"
    )
    parts = [head]
    for one in report["temperatures"]:
        error = one["times"].get("error")
        parts.append(
            f"=== temperature {one['temperature']:g}; sums of measured parts are off by "
            f"{100 * error:.0f} % at most"
        )
        for domain in dict.fromkeys(record["domain"] for record in one["results"]):
            own = [record for record in one["results"] if record["domain"] == domain]
            parts.append(f"{domain}\n{_tabulate(own, report.get('against')).to_text()}")
    return "\n\n".join(parts)


def _tabulate(records: Sequence[dict[str, Any]], against: str | None) -> Table:
    """Tabulate policies, one per row; `against` adds the speed over that contender's."""
    paired = [Column(f"/ {against}", fixed(3)), Column("[95%]", interval(3))] if against else []
    columns = [
        Column("policy"),
        *(Column(clock, fixed(2)) for clock in ("modelled", "replayed", "whole")),
        Column("[95%]", interval()),
        Column("mean", fixed(2)),
        Column("accepted+bonus", fixed(2)),
        Column("steps", fixed(1)),
        Column("rows", fixed(1)),
        Column("drafts", percent(1)),
        Column("own", percent(1)),
        *paired,
        Column("= ar", show_agreement),
    ]
    names = dict.fromkeys(record["method"] for record in records)
    return Table(columns, [_row(name, records, bool(against)) for name in names])


def _row(name: str, records: Sequence[dict[str, Any]], paired: bool) -> list[Any]:
    by = {record["clock"]: record for record in records if record["method"] == name}
    whole = by["whole"]
    keys = ("speedup_ci", "speedup_mean_of_ratios", "mean_acceptance_length", "steps", "rows")
    keys += ("drafted_rounds", "own_share", *(("against", "against_ci") if paired else ()))
    return [
        name,
        *(by.get(clock, {}).get("speedup") for clock in ("modelled", "replayed", "whole")),
        *(whole[key] for key in (*keys, "differing_prompts")),
    ]
