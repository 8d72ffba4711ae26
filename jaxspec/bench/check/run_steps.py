"""Run the steps of a check in order, within a time, and lose nothing."""

from __future__ import annotations

import dataclasses
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Progress = Callable[[str], None]


@dataclasses.dataclass(frozen=True)
class Step:
    """A step of a check.

    Attributes:
      name: its key in the report.
      measure: makes its result, ready for JSON.
      minutes: it does not begin with less time left than this.
    """

    name: str
    measure: Callable[[], Any]
    minutes: float = 0.0


def run_steps(
    steps: Sequence[Step],
    minutes: float,
    report: dict[str, Any],
    progress: Progress = lambda line: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Run steps until the time is over. One that fails does not end the check.

    Args:
      minutes: steps begin within this time.
      report: gets `steps`, {name: {"seconds", and "result", "skipped" or "error"}}, and `seconds`.
      progress: called with a line at the start of each step.
      save: called with the report after each step.
    """
    started = time.perf_counter()
    report |= {"minutes": minutes, "steps": {}}
    for step in steps:
        began = time.perf_counter()
        left = minutes - (began - started) / 60
        if left < step.minutes:
            needs = "no time is left"
            if step.minutes:
                needs = f"needs {step.minutes:g} minutes, and {max(left, 0):.1f} are left"
            report["steps"][step.name] = {"seconds": 0.0, "skipped": needs}
            continue
        progress(f"{step.name} ({began - started:.0f} s)")
        report["steps"][step.name] = _run(step) | {"seconds": time.perf_counter() - began}
        report["seconds"] = time.perf_counter() - started
        save(report)
    report["seconds"] = time.perf_counter() - started
    save(report)
    return report


def _run(step: Step) -> dict[str, Any]:
    try:
        return {"result": step.measure()}
    except Exception as error:
        # Whatever a new device breaks belongs in the report, and the other steps still count.
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        return {"error": f"{type(error).__name__} at {where}: {str(error)[:600]}"}
