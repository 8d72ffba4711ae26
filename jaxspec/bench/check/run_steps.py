"""Run the steps of a check in order, within a time, and lose nothing."""

from __future__ import annotations

import dataclasses
import json
import re
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

Progress = Callable[[str], None]
# Errors after which a process can use the GPU no more.
_FAULT = re.compile(r"CUDA_ERROR_(ILLEGAL|MISALIGNED|LAUNCH_FAILED|HARDWARE|ASSERT|INVALID_PC)\w*")


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

    After some errors of a GPU, this process can run nothing on it any more. The report then has
    `fault`, the name of that step, and its other steps are left to a new process.

    Args:
      minutes: steps begin within this time.
      report: gets `steps`, {name: {"seconds", and "result", "skipped" or "error"}}, and `seconds`.
        What it has of both stays: its steps are not run again.
      progress: called with a line at the start of each step.
      save: called with the report after each step.
    """
    started, earlier = time.perf_counter(), report.get("seconds", 0.0)
    report |= {"minutes": minutes, "steps": report.get("steps", {})}
    for step in steps:
        if step.name in report["steps"]:
            continue
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
        report["seconds"] = earlier + time.perf_counter() - started
        if _FAULT.search(report["steps"][step.name].get("error", "")):
            report["fault"] = step.name
        save(report)
        if "fault" in report:
            return report
    report["seconds"] = earlier + time.perf_counter() - started
    save(report)
    return report


def take_over(report: dict[str, Any], before: dict[str, Any]) -> dict[str, Any]:
    """Return the steps and seconds of an earlier report of the same device and sizes.

    Steps that were skipped are left out, so that they run.

    Raises:
      ValueError: it is of another device, other sizes or another mesh.
    """
    for name in ("device", "sizes", "mesh"):
        # A report from a file holds lists for tuples.
        if json.loads(json.dumps(report[name])) != before.get(name):
            raise ValueError(
                f"the report to go on with differs in {name!r}: it says {before.get(name)}, and "
                f"this is {report[name]}; begin a new check"
            )
    steps = {name: step for name, step in before["steps"].items() if "skipped" not in step}
    return {"steps": steps, "seconds": before["seconds"]}


def _run(step: Step) -> dict[str, Any]:
    try:
        return {"result": step.measure()}
    except Exception as error:
        # Whatever a new device breaks belongs in the report, and the other steps still count.
        last = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{last.filename.rpartition('/')[2]}:{last.lineno}"
        return {"error": f"{type(error).__name__} at {where}: {str(error)[:600]}"}
