"""Make the records of a latency report: a piece's times, and its floor."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from jaxspec.bench.latency import floors
from jaxspec.bench.latency.cell import CompiledPiece
from jaxspec.bench.latency.latency_options import LatencyOptions


def make_record(
    program: CompiledPiece,
    width: int,
    context: int,
    samples: Sequence[float],
    report: dict[str, Any],
    settings: LatencyOptions,
) -> dict[str, Any]:
    """Make the record of one figure.

    - `piece`, `width` (`ar`: the width that it was timed with) and `context`; `measure_latency` adds
      `depth`, the longest drafted path;
    - `ms` (median), `quartiles`, `samples` in the order taken, `times` (repetitions per sample),
      `kernels`;
    - `bytes` and `flops`, the least that the piece must move and compute, or None if unknown; from
      these `floor_ms`, `percent_of_floor` (100 is the floor itself), `bytes_per_second`,
      `flops_per_second`, and `cached` (all bytes fit into the last-level cache, so the copy's
      bandwidth is no floor);
    - for `draft` of trees that grow with the drafter, `draft_steps` after the root's;
    - for `forced` rounds, `tokens_per_second` and `tokens_per_round`.
    """
    ms, parts = float(np.median(samples)), [work(context) for work in program.works]
    found = {
        "piece": program.name,
        "width": width,
        "context": context,
        "ms": ms,
        "quartiles": np.percentile(samples, [25, 75]).tolist(),
        "samples": list(samples),
        "times": program.times,
        "kernels": program.kernels,
    }
    if program.steps is not None:
        found["draft_steps"] = program.steps
    if program.name == "forced":
        length = program.tokens / program.times
        found |= {
            "tokens_per_round": length,
            "tokens_per_second": 1e3 * settings.batch * length / ms,
        }
    if not parts:
        return found | dict.fromkeys(
            (
                "bytes",
                "flops",
                "floor_ms",
                "percent_of_floor",
                "bytes_per_second",
                "flops_per_second",
                "cached",
            )
        )
    rates = [
        report["ceilings"][name]["median"]
        for name in ("copy_bytes_per_second", "matmul_flops_per_second")
    ]
    floor = 1e3 * sum(floors.floor_seconds(part, *rates) for part in parts)
    moved, computed = (sum(part[i] for part in parts) for i in (0, 1))
    return found | {
        "bytes": moved,
        "flops": computed,
        "floor_ms": floor,
        "percent_of_floor": 100 * floor / ms,
        "bytes_per_second": 1e3 * moved / ms,
        "flops_per_second": 1e3 * computed / ms,
        "cached": None if report["cache_bytes"] is None else moved < report["cache_bytes"],
    }
