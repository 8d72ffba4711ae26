"""What an update costs: gradient steps of each action and tests of a batch, timed in turns."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from benchmarks.adapt.kept_runs import Record
from jaxspec.adapt import AdaptiveSession, AdaptOptions, make_decider
from jaxspec.adapt.actions import ACTIONS
from jaxspec.adapt.deciders.fixed import make_never
from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.core.runtime.compilations import compile_seconds
from jaxspec.io.text.prompt_files import LabelledPrompt

TEST = "test"
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
      step of each action and a test of one batch, the median `seconds` and those that it `compiles`
      before; under `updates` the seconds of `steps` steps of each action and `tests` tests.

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
    parts = _time_parts(session, repeats, progress)
    sizes, rule = session.options, make_decider(_RULE)
    tests = 2 * math.ceil(sizes.tested / sizes.learner.batch)
    each = {action: rule.steps * parts[action]["seconds"] for action in ACTIONS}
    session.close()
    return {
        "drafter": session.drafter,
        "repeats": repeats,
        "decode": given,
        "steps": rule.steps,
        "tests": tests,
        "query": float(np.median(queries)),
        "parts": parts,
        "updates": {name: took + tests * parts[TEST]["seconds"] for name, took in each.items()},
    }


def render_updates(report: Record) -> str:
    """Return the table of a report of `measure_updates`."""
    columns = [Column("what"), Column("ms", fixed(0), "right")]
    columns += [Column("queries", fixed(1), "right"), Column("compiles s", fixed(1), "right")]
    names = {action: f"step of {action}" for action in ACTIONS} | {TEST: "test of a batch"}
    rows = [["query", report["query"], None]]
    rows += [
        [names[name], one["seconds"], one["compiles"]] for name, one in report["parts"].items()
    ]
    rows += [[f"update of {name}", took, None] for name, took in report["updates"].items()]
    table = [[name, 1e3 * took, took / report["query"], built] for name, took, built in rows]
    made = f"an update: {report['steps']} steps, {report['tests']} tests of a batch"
    return f"{Table(columns, table).to_text()}\n{made}"


def _time_parts(session: AdaptiveSession, repeats: int, progress: Callable[[str], None]) -> Record:
    """Time a step of each action and a test, on every batch of the evidence."""
    trainer, ring = session.trainer, session.buffers.ring
    learner, size = trainer.learner, session.options.learner.batch
    found = session.buffers.newest(session.options.segments)
    batches = [found[at : at + size] for at in range(0, len(found), size)]
    given = trainer.rest, trainer.target, ring

    def run(name: str, batch: np.ndarray) -> None:
        if name == TEST:
            learner.judge(trainer.train.theta, *given, batch, ring.held)
            return
        trainer.train, _ = learner.step(trainer.train, name, trainer.start, *given, batch)
        jax.block_until_ready(trainer.train)

    parts = {}
    for name in (*ACTIONS, TEST):
        progress(f"{name} compiles")
        compiled = compile_seconds()
        run(name, batches[0])
        parts[name] = {"compiles": compile_seconds() - compiled}
    times: dict[str, list[float]] = {name: [] for name in parts}
    for repeat in range(repeats):
        progress(f"turn {repeat + 1} of {repeats}")
        for batch in batches:
            for name in parts if repeat % 2 else reversed(parts):
                began = time.perf_counter()
                run(name, batch)
                times[name].append(time.perf_counter() - began)
    return {name: {"seconds": float(np.median(times[name])), **one} for name, one in parts.items()}
