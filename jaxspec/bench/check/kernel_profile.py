"""List the costliest kernels of a few rounds from a profiler's trace."""

from __future__ import annotations

import collections
import gzip
import json
import re
import tempfile
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.bench.check.rounds import USUAL, prepare_rounds
from jaxspec.call.session import matmul_precision, run_prefill
from jaxspec.core.params import Params
from jaxspec.round.loop import run

ROUNDS, SHOWN = 3, 40
# What a trace calls the lines of a GPU's kernels, and of the threads that run XLA's programs on a
# CPU.
_STREAM, _THREAD = re.compile(r"^Stream"), re.compile(r"^(tf_XLA|XLA)", re.IGNORECASE)


def profile_rounds(params: Params, *, context: int) -> dict[str, Any]:
    """Trace rounds of `best_first@64`, and add up the times of equal kernels.

    Devices that share the target count with their average.

    Returns:
      `rounds`, `kernels` per round, `busy_ms` per round, and `costliest`: up to SHOWN of {"name",
      "us" per round, "count" per round}.
    """
    devices = 1 if params.layout is None else params.layout.devices
    session = prepare_rounds(params, USUAL, context, 2 * ROUNDS)
    with matmul_precision(session), tempfile.TemporaryDirectory() as folder:

        def more(state: Any, rounds: int) -> Any:
            arguments = (session.params, session.request, state, jnp.int32(rounds))
            return jax.block_until_ready(run(*arguments, config=session.config))

        state = more(run_prefill(session), 1)
        with jax.profiler.trace(folder, create_perfetto_trace=True):
            more(state, ROUNDS)
        (path,) = Path(folder).rglob("perfetto_trace.json.gz")
        with gzip.open(path, "rt", encoding="utf-8") as file:
            return summarise_trace(json.load(file), ROUNDS, devices)


def summarise_trace(trace: dict[str, Any], rounds: int, devices: int = 1) -> dict[str, Any]:
    """Add up the events of a trace in Chrome's format that devices ran; average over them."""
    events = trace["traceEvents"]
    processes = {e["pid"]: e["args"]["name"] for e in events if e.get("name") == "process_name"}
    threads = {
        (e["pid"], e["tid"]): e["args"]["name"] for e in events if e.get("name") == "thread_name"
    }
    seconds, counts = collections.Counter(), collections.Counter()
    for event in events:
        place = (event.get("pid"), event.get("tid"))
        gpu = processes.get(place[0], "").startswith("/device:")
        line = _STREAM if gpu else _THREAD
        if event.get("ph") != "X" or not line.search(threads.get(place, "")):
            continue
        if gpu or not event["name"].startswith("ThunkExecutor"):  # it contains the others
            seconds[event["name"]] += event.get("dur", 0)
            counts[event["name"]] += 1
    times = rounds * devices
    return {
        "rounds": rounds,
        "kernels": sum(counts.values()) / times,
        "busy_ms": sum(seconds.values()) / 1e3 / times,
        "costliest": [
            {"name": name, "us": total / times, "count": counts[name] / times}
            for name, total in seconds.most_common(SHOWN)
        ],
    }
