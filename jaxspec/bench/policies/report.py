"""The report of a comparison of policies as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.bench.report.table import align, show


def render(report: dict[str, Any]) -> str:
    """One table a temperature and domain, the clocks side by side, each a ratio to plain decoding
    by the same clock.
    """
    device = report["device"]
    head = (
        f"{report['repeats']} repeats, {report['dtype']} on {device['kind']} ({device['cpus']} host cores), jax "
        f"{report['versions']['jax']}; speed-ups over ar, tokens over seconds of all prompts, with intervals of 95 % over the "
        "prompts; mean: of the prompts' own ratios; own: the policy's share of the time"
    )
    parts = [head]
    for one in report["temperatures"]:
        error = one["times"].get("error")
        parts.append(
            f"=== temperature {one['temperature']:g}; sums of measured parts are off by {100 * error:.0f} % at most"
        )
        for domain in dict.fromkeys(record["domain"] for record in one["results"]):
            own = [record for record in one["results"] if record["domain"] == domain]
            parts.append(f"{domain}\n" + align(_rows(own, report.get("against"))))
    return "\n\n".join(parts)


def _rows(records: Sequence[dict[str, Any]], against: str | None) -> list[list[str]]:
    heading = [
        "policy",
        "modelled",
        "replayed",
        "whole",
        "[95%]",
        "mean",
        "accepted+bonus",
        "steps",
        "rows",
        "drafts",
        "own",
    ]
    rows = [[*heading, *([f"/ {against}", "[95%]"] if against else []), "= ar"]]
    for name in dict.fromkeys(record["method"] for record in records):
        by = {record["clock"]: record for record in records if record["method"] == name}
        whole = by["whole"]
        rows.append(
            [
                name,
                *(
                    show(by[clock]["speedup"], 2) if clock in by else "-"
                    for clock in ("modelled", "replayed", "whole")
                ),
                _bounds(whole["speedup_ci"]),
                show(whole["speedup_mean_of_ratios"], 2),
                show(whole["mean_acceptance_length"], 2),
                show(whole["steps"], 1),
                show(whole["rows"], 1),
                _percent(whole["drafted_rounds"]),
                _percent(whole["own_share"]),
                *([show(whole["against"], 3), _bounds(whole["against_ci"], 3)] if against else []),
                "yes" if whole["identical_to_ar"] else f"NO ({whole['differing_prompts']})",
            ]
        )
    return rows


def _bounds(found: Sequence[float] | None, digits: int = 2) -> str:
    return "[{}, {}]".format(*(show(bound, digits) for bound in found or (None, None)))


def _percent(share: float | None) -> str:
    return "-" if share is None else f"{100 * share:.1f}%"
