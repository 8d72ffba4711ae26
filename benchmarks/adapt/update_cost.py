"""What an update costs: gradient steps of each action, passes and tests of a batch, timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.adapt.kept_runs import Record
from benchmarks.adapt.update_parts import AGAIN, KEEP, TEST, count_steps, make_parts
from jaxspec.adapt import AdaptiveSession, AdaptOptions, make_decider
from jaxspec.adapt.actions import ACTIONS, FULL, HEAD
from jaxspec.adapt.deciders.fixed import make_never
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.call.options import group_options
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from jaxspec.core.params import Params
from jaxspec.core.runtime.compilations import compile_seconds
from jaxspec.io.text.prompt_files import LabelledPrompt

NAMES = {
    HEAD: "step of head",
    AGAIN: "step of head that drafts again",
    FULL: "step of full",
    KEEP: "pass that keeps outputs",
    TEST: "test of a batch",
}
_RULE = "bandit-paired"  # an update has its steps and its two tests


def measure_updates(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    *,
    drafter: str | None = None,
    repeats: int = 7,
    options: AdaptOptions | None = None,
    decode: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Record:
    """Decode every prompt with evidence, then train on it and test, `repeats` times in turns.

    Args:
      drafter: its name; None: the default one.
      decode: keyword arguments of `jaxspec.decode`.

    Returns:
      A JSON-able record: the median seconds of a `query` without evidence; under `parts`, for a
      step of each action, a pass and a test of one batch, the median `seconds`, those that it
      `compiles` before, and for steps the `operations` of matrix products; under `updates` the seconds of
      `steps` steps of each action and `tests` tests. `ratio` is how much dearer a full step is than
      a head-only one, with its `interval` over turns and batches of `positions` positions each.

    Raises:
      ValueError: no prompts, or `repeats` is below 1.
    """
    if repeats < 1 or not prompts:
        raise ValueError(f"{len(prompts)} prompts, {repeats} times: give at least one of both")
    given = {"policy": None, "budget": 16} | (decode or {})
    session, queries = (
        AdaptiveSession(params, make_never(learns=True), drafter=drafter, options=options),
        [],
    )
    for number, prompt in enumerate(prompts, 1):
        progress(f"prompt {number} of {len(prompts)}")
        session.decode(prompt.content, **group_options(**given))
        session.decode(prompt.content, adapt=False, **group_options(**given))  # may compile
        began = time.perf_counter()
        session.decode(prompt.content, adapt=False, **group_options(**given))
        queries.append(time.perf_counter() - began)
    found = _time_parts(session, repeats, progress)
    sizes, rule = session.options, make_decider(_RULE)
    batches = math.ceil(sizes.tested / sizes.learner.batch)
    session.close()
    return {
        "drafter": session.drafter,
        "repeats": repeats,
        "decode": given,
        "steps": rule.steps,
        "tests": 2 * batches,
        "query": float(np.median(queries)),
        **found,
        "updates": _sum_updates(found["parts"], rule.steps, batches),
    }


def _sum_updates(parts: Record, steps: int, batches: int) -> dict[str, float]:
    """Sum an update of each action: its steps, two tests, and the passes that the tests need.

    Outputs that a test reads before an update are kept. A full update's second test needs new ones.
    """
    took = {name: part["seconds"] for name, part in parts.items()}
    tests = 2 * batches * took[TEST]
    found = {action: steps * took[action] + tests for action in ACTIONS}
    found[FULL] += batches * took.get(KEEP, 0.0)
    return found


def render_updates(report: Record) -> str:
    """Return the table of a report of `measure_updates`."""
    columns = [Column("what"), Column("ms", fixed(1), "right")]
    columns += [Column("queries", fixed(2), "right"), Column("compiles s", fixed(1), "right")]
    columns += [Column("GFLOP", fixed(2), "right")]
    rows = [["query", report["query"], None, None]]
    rows += [
        [NAMES[name], one["seconds"], one["compiles"], one["operations"]]
        for name, one in report["parts"].items()
    ]
    rows += [[f"update of {name}", took, None, None] for name, took in report["updates"].items()]
    table = [
        [name, 1e3 * took, took / report["query"], built, None if count is None else count / 1e9]
        for name, took, built, count in rows
    ]
    made = f"an update: {report['steps']} steps, {report['tests']} tests of a batch"
    ratio = with_interval(2)((report["ratio"], report["interval"]))
    made += (
        f"\na full step takes as long as {ratio} head-only ones, {report['positions']} positions"
    )
    return f"{Table(columns, table).to_text()}\n{made}"


def _time_parts(session: AdaptiveSession, repeats: int, progress: Callable[[str], None]) -> Record:
    """Time a step of each action, a pass and a test, on every batch of the evidence."""
    trainer, ring = session.trainer, session.buffers.ring
    size = session.options.learner.batch
    found = session.buffers.newest(session.options.segments)
    batches = [found[at : at + size] for at in range(0, len(found), size)]
    run = make_parts(trainer, ring, found)
    parts = {}
    for name, part in run.items():
        progress(f"{name} compiles")
        compiled = compile_seconds()
        part(batches[0])
        parts[name] = {"compiles": compile_seconds() - compiled}
    times: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in range(repeats):
        progress(f"turn {repeat + 1} of {repeats}")
        for batch in batches:
            for name in run if repeat % 2 else reversed(run):
                began = time.perf_counter()
                run[name](batch)
                times[name].append(time.perf_counter() - began)
    operations = count_steps(trainer, ring, batches[0])
    for name, one in parts.items():
        one |= {"seconds": float(np.median(times[name])), "operations": operations.get(name)}
    full, head = (np.array(times[name]) for name in (FULL, HEAD))
    read = float((np.asarray(ring.weight)[found] > 0).sum()) / len(batches)
    return {
        "parts": parts,
        "ratio": float(np.median(full) / np.median(head)),
        "interval": bound_ratio(resample_prompts([""] * len(full)), [full], [head]),
        "positions": round(read),
    }
