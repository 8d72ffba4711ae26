"""Compile the decode loop of a named architecture for a GPU you don't have, and report its rounds.

The programs are in `programs`, `shared` and `serving`; `options` describes the calls.
"""

from __future__ import annotations

import inspect
from typing import Any

from jaxspec.bench.aot.options import describe_call
from jaxspec.bench.aot.programs import decode_loop
from jaxspec.call.arguments import check_budget, check_count
from jaxspec.targets.sharding.shares import choose_experts, widen
from pallas_kernels.aot.compile import compile_report

_FACTORIES = {
    "rounds": "programs:decode_loop",
    "prefill": "programs:prefill_program",
    "draft": "programs:draft_program",
    "visit": "serving:visit_program",
    "feed": "serving:feed_program",
}
_SHARED = {"rounds": "shared:shared_loop", "prefill": "shared:shared_prefill"}


def compile_decode_loop(
    gpu: str = "h100",
    *,
    part: str = "rounds",
    large: int = 2**23,
    spills: bool = True,
    devices: int = 1,
    experts: str = "channel",
    rows: int | None = None,
    **options,
) -> dict[str, Any]:
    """Compile `decode_loop(**options)` for `gpu`, see `pallas_kernels.aot.compile.compile_report`.

    Args:
      part: `rounds`; `draft` for the drafting of a round alone, or `prefill` for the program that
        comes before; `visit` and `feed` for the programs of a serving engine of `batch` slots.
      devices: number of GPUs that share the target, for `rounds` and `prefill`.
      experts: how they share experts, see `jaxspec.load`.
      rows: most rows that a round of a `visit` verifies for all slots (default: that of
        `jaxspec.serve`).

    Returns:
      The report, with `part`, `options`, `devices`, `experts` and, if the program compiles,
      `cache_bytes`.

    Raises:
      ValueError: an option is out of range.
      ImportError: the CUDA plugin is not installed.
    """
    options = check_call(part=part, devices=devices, experts=experts, rows=rows, **options)
    factory, given, shared = _FACTORIES[part], options, {"devices": devices, "experts": experts}
    if part == "visit":
        given = options | {"rows": rows}
    if devices > 1:
        factory, given = _SHARED[part], options | shared
    compiled = compile_report(
        f"jaxspec.bench.aot.{factory}", given, gpu, large=large, spills=spills
    )
    return {"part": part, "options": options} | shared | compiled


def check_call(
    *,
    part: str = "rounds",
    devices: int = 1,
    experts: str = "channel",
    rows: int | None = None,
    **options: Any,
) -> dict[str, Any]:
    """Return the options of `compile_decode_loop` with defaults; ValueError if one is out of range."""
    options = {
        name: each.default for name, each in inspect.signature(decode_loop).parameters.items()
    } | options
    check_count("batch", options["batch"])
    check_budget(options["budget"])
    if rows is not None and rows < options["batch"]:
        raise ValueError(f"rows is {rows}: give at least one for each of {options['batch']} slots")
    spec, _ = describe_call(**{name: value for name, value in options.items() if name != "batch"})
    if check_count("tp", devices) > 1 and part not in _SHARED:
        raise ValueError(f"--tp compiles rounds and prefills, not {part}")
    # Refuse devices that cannot share the target or its experts.
    widen(choose_experts(spec.target, devices, experts), devices)
    return options
