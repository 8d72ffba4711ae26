"""Measure what the first call of a process takes: compiling, and timing rounds for the default."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable
from typing import Any

from jaxspec.bench.measure.methods import parse_methods
from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.call.arguments import check_count
from jaxspec.core.runtime.clock import order_turns

_HEADS = ("first call, s", "second call, s", "difference, s", "its range", "XLA, s of threads")


def measure_first_calls(
    model: str,
    methods: str,
    *,
    drafter: str | dict[str, str] | None = None,
    repeats: int = 3,
    prompt_tokens: int = 100,
    max_new_tokens: int = 64,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Make the first call of each method in new processes, in turns.

    Each process has an empty folder for compiled programs and for the costs of rounds. It loads the
    model, decodes, and decodes again. The processes need the device, so this one should not have
    started it.

    Args:
      model, drafter: see `jaxspec.load`.
      methods: see `jaxspec.bench.measure.methods.parse_methods`.
      repeats: processes of each method.
      prompt_tokens: tokens of the prompt.
      max_new_tokens: tokens to generate.
      progress: receives lines for people.

    Returns:
      A report with `settings`, `device`, `versions`, and `samples`: {method: [{"seconds",
      "compile_seconds", "repeated_seconds"}]}. `seconds` is a whole first call, its tokens
      included; `compile_seconds` adds up what XLA took in all threads.

    Raises:
      ValueError: a number is out of range, a method does not exist, or a call fails.
    """
    check_count("repeats", repeats)
    given = {
        "model": model,
        "drafter": drafter,
        "prompt_tokens": check_count("prompt_tokens", prompt_tokens),
        "max_new_tokens": check_count("max_new_tokens", max_new_tokens, 2),
    }
    names = [method.name for method in parse_methods(methods, budget=4)]
    samples: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    about: dict[str, Any] = {}
    for repeat in range(repeats):
        for name in order_turns(names, 0, repeat):
            about = _call_once(given | {"method": name})
            sample = {key: about.pop(key) for key in list(about) if key.endswith("seconds")}
            samples[name].append(sample)
            progress(f"{name}, {repeat + 1} of {repeats}: {sample['seconds']:.1f} s")
    about.pop("method")
    return {"settings": given | {"repeats": repeats}, **about, "samples": samples}


def render_first_calls(report: dict[str, Any]) -> str:
    """Render medians of a report of `measure_first_calls` as text."""
    rows, number = [], fixed(1)
    for name, samples in report["samples"].items():
        more = [one["seconds"] - one["repeated_seconds"] for one in samples]
        first, second, compiling = (
            number(statistics.median(one[key] for one in samples))
            for key in ("seconds", "repeated_seconds", "compile_seconds")
        )
        spread = f"{min(more):.1f} to {max(more):.1f}"
        rows.append((name, first, second, number(statistics.median(more)), spread, compiling))
    device, settings = report["device"], report["settings"]
    title = (
        f"{settings['model']} on {device['kind']} ({device['cpus']} host cores), "
        f"jax {report['versions']['jax']}: medians of {settings['repeats']} processes each\n"
    )
    heads = [Column(text, align="right") for text in _HEADS]
    return title + Table([Column("method"), *heads], rows).to_text()


def _call_once(given: dict[str, Any]) -> dict[str, Any]:
    module = "benchmarks.loading.one_first_call"
    with tempfile.TemporaryDirectory(prefix="jaxspec-first-") as folder:
        # A folder that JAX was given would keep programs from one process to the next.
        kept = {key: value for key, value in os.environ.items() if "COMPILATION_CACHE" not in key}
        environment = kept | {"JAXSPEC_CACHE": folder}
        command = [sys.executable, "-m", module, json.dumps(given)]
        done = subprocess.run(command, capture_output=True, text=True, env=environment)
    if done.returncode:
        reason = (done.stderr.strip().splitlines() or [f"status {done.returncode}"])[-1]
        raise ValueError(f"the call of {given['method']!r} failed: {reason}")
    return json.loads(done.stdout.splitlines()[-1])
