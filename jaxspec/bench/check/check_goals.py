"""The goals of a check: what must hold everywhere, and what an H100 should reach."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple


class Goal(NamedTuple):
    """A quantity of a report and its bound.

    Attributes:
      quantity: what it is, with its unit.
      bound: the goal.
      at_most: whether smaller is better.
      figure: report -> its value; None if a step is missing.
    """

    quantity: str
    bound: float
    at_most: bool
    figure: Callable[[dict[str, Any]], float | None]

    def is_met(self, value: float) -> bool:
        """Whether a value meets the goal."""
        return value <= self.bound if self.at_most else value >= self.bound


def find_result(report: dict[str, Any], step: str) -> Any:
    """Return the result of a step; None if it was skipped or failed."""
    return report["steps"].get(step, {}).get("result")


def find_texts(report: dict[str, Any]) -> dict[str, Any]:
    """Return what `compare_texts` found, on the processor too; empty if nothing was compared."""
    found = (find_result(report, step) or {} for step in ("processor", "lossless"))
    return {name: one for result in found for name, one in result.items()}


def _wrong_kernels(report: dict[str, Any]) -> float | None:
    found = [find_result(report, step) for step in ("layer kernels", "kernels")]
    checked = [record for one in found if one is not None for record in one.values()]
    return sum(len(record["failed"]) for record in checked) if checked else None


def _differing(report: dict[str, Any]) -> float | None:
    found = find_texts(report)
    return sum(one["differing"] for one in found.values()) if found else None


def _round(report: dict[str, Any], name: str, key: str = "ms") -> float | None:
    found = find_result(report, f"rounds: {name}")
    return None if found is None else found[key]


def _ratio(report: dict[str, Any], name: str, other: str) -> float | None:
    above, below = _round(report, name), _round(report, other)
    return None if above is None or not below else above / below


def _piece(report: dict[str, Any], rows: int, key: str) -> float | None:
    found = find_result(report, "verification")
    return None if found is None else found.get(str(rows), {}).get(key)


def _prefill(report: dict[str, Any]) -> float | None:
    found = find_result(report, "prefill")
    return None if not found else next(reversed(found.values()))["seconds"]


EVERYWHERE = (
    Goal("cases where a kernel is wrong", 0, True, _wrong_kernels),
    Goal("texts that differ from autoregressive ones (float32)", 0, True, _differing),
)
_FILTERED = "best_first@64, T=0.6, top_k 20, top_p 0.95"
# Qwen3-8B's shapes, bfloat16, one H100, batch 1, 1,024 tokens of context.
H100 = (
    Goal(
        "autoregressive step, % of its floor",
        85,
        False,
        lambda r: _round(r, "ar", "share_of_floor"),
    ),
    Goal("round of 64 rows, ms", 7.5, True, lambda r: _round(r, "best_first@64")),
    Goal(
        "round of 64 rows / autoregressive step",
        1.35,
        True,
        lambda r: _ratio(r, "best_first@64", "ar"),
    ),
    Goal(
        "verification of 64 rows / autoregressive step",
        1.10,
        True,
        lambda r: _piece(r, 64, "verify_over_ar"),
    ),
    Goal(
        "verification of 256 rows / autoregressive step",
        1.45,
        True,
        lambda r: _piece(r, 256, "verify_over_ar"),
    ),
    Goal("tree building at 256 rows, ms", 0.15, True, lambda r: _piece(r, 256, "tree_ms")),
    Goal(
        "round with top-k and top-p / greedy round",
        1.05,
        True,
        lambda r: _ratio(r, _FILTERED, "best_first@64"),
    ),
    Goal(
        "stream / rounds in one loop",
        1.05,
        True,
        lambda r: _ratio(r, "stream", "best_first@64"),
    ),
    Goal("prefill of the longest prompt, s", 2.5, True, _prefill),
)


def list_goals(report: dict[str, Any]) -> list[tuple[Goal, float | None, bool | None]]:
    """List (goal, value here, whether it is met) for a report.

    Goals of an H100 have no verdict on another device or architecture, or if several share it.
    """
    right = "H100" in report["device"]["kind"] and report["sizes"]["arch"] == "qwen3-8b"
    right = right and not report.get("mesh")
    goals = [(goal, True) for goal in EVERYWHERE]
    goals += [(goal, right) for goal in H100] if report["device"]["platform"] == "gpu" else []
    found = []
    for goal, counts in goals:
        value = goal.figure(report)
        found.append((goal, value, goal.is_met(value) if counts and value is not None else None))
    return found


def list_shortfalls(report: dict[str, Any]) -> list[str]:
    """Say in a line each what went wrong or falls short of its goal."""
    lines = [
        f"{name}: {step['error']}" for name, step in report["steps"].items() if "error" in step
    ]
    for goal, value, met in list_goals(report):
        if met is False:
            word = "at most" if goal.at_most else "at least"
            lines.append(f"{goal.quantity}: {value:.4g}, the goal is {word} {goal.bound:g}")
    return lines


def is_correct(report: dict[str, Any]) -> bool:
    """Whether nothing failed and nothing that must hold everywhere is violated."""
    failed = any("error" in step for step in report["steps"].values())
    broken = [goal for goal, _, met in list_goals(report) if met is False and goal in EVERYWHERE]
    return not failed and not broken
