"""Shorten the JSON of `jaxspec bench` to the figures that tables quote, for version control."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

EXAMPLE = "raw.json benchmarks/results/2026-11/mini_all_t0.json"
# Lists by round, decode, stream, repeat or position: pictures and fits need them, tables do not.
_RAW = frozenset(
    {
        "rounds",
        "decodes",
        "runs",
        "samples",
        "sizes",
        "surrogate",
        "acceptance_rate_per_pos",
        "acceptance_rate_per_pos_conditional",
    }
)
# Figures that are kept of a method in a single domain.
_BY_DOMAIN = frozenset(
    {
        "temperature",
        "clock",
        "method",
        "domain",
        "prompts",
        "tokens",
        "rounds",
        "tokens_per_second",
        "speedup",
        "speedup_ci",
        "mean_acceptance_length",
        "mean_acceptance_length_ci",
        "identical_to_ar",
        "differing_prompts",
    }
)
DIGITS = 5
"""Significant digits of floats."""


def shorten(report: Any) -> Any:
    """Drop raw lists from a report, round floats, and keep only the main figures of each domain."""
    if isinstance(report, float):
        return float(f"{report:.{DIGITS}g}")
    if isinstance(report, list):
        return [shorten(one) for one in report]
    if not isinstance(report, dict):
        return report
    by_domain = "mean_acceptance_length" in report and report.get("domain", "all") != "all"
    return {
        name: shorten(value)
        for name, value in report.items()
        if not (name in _RAW and isinstance(value, list)) and (not by_domain or name in _BY_DOMAIN)
    }


def dump(report: dict[str, Any]) -> str:
    """Format JSON with one result per line, so that a changed figure changes one line."""
    parts = [f"{json.dumps(name)}: {_dump_value(value)}" for name, value in report.items()]
    return "{\n" + ",\n".join(parts) + "\n}\n"


def _dump_value(value: Any) -> str:
    if _is_records(value):
        lines = (
            dump(one).strip() if any(map(_is_records, one.values())) else json.dumps(one)
            for one in value
        )
        return "[\n" + ",\n".join(lines) + "\n]"
    return json.dumps(value)


def _is_records(value: Any) -> bool:
    return isinstance(value, list) and bool(value) and isinstance(value[0], dict)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of the study."""
    parser.add_argument("raw", type=Path, help="JSON that a measurement wrote")
    parser.add_argument("out", type=Path, help="file to write")


def run(arguments: argparse.Namespace) -> tuple[Any, str]:
    """Shorten a file."""
    report = json.loads(arguments.raw.read_text(encoding="utf-8"))
    arguments.out.write_text(dump(shorten(report)), encoding="utf-8")
    return report, f"wrote {arguments.out}"
