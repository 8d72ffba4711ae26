"""`jaxspec bench latency`: time the pieces of a round against what this device can do at best."""

from __future__ import annotations

import dataclasses
import itertools
import math
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.architectures import DRAFTER, abstract_params, architecture, random_params
from jaxspec.bench.latency import floors
from jaxspec.bench.latency.attention_alone import REFERENCE, measure_attention, pick_implementation
from jaxspec.bench.latency.ceilings import find_cache_bytes, find_memory_bytes, measure_ceilings
from jaxspec.bench.latency.cell import (
    Caches,
    CompiledPiece,
    compile_ar,
    compile_cell,
    count_slack,
    time_programs,
)
from jaxspec.bench.latency.latency_options import LatencyOptions, default_platform, resolve_options
from jaxspec.bench.report.summary import describe_environment
from jaxspec.core.params import Params
from jaxspec.targets.quant import quantize_params
from pallas_kernels import registry

# Megabytes copied, rows and columns of the matrices multiplied.
CEILING_SIZES = {"gpu": (2000, 8192), "cpu": (256, 1024)}
# What the goals are about is measured first.
GOAL_WIDTHS, GOAL_CONTEXT = (64, 256), 1024


def measure_latency(
    settings: LatencyOptions,
    progress: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Measure, most important first; `skipped` lists what did not fit into memory or time.

    Args:
      progress: called with a line of text now and then.
      save: called with the report so far after every step.

    Returns:
      Ready for JSON: `settings`, device and versions (see `bench.environment`), `memory`,
      `cache_bytes`, `ceilings`, `records` (one per piece, width and context, see `make_record`),
      `attention` (see `measure_attention`), `compile_seconds`, `seconds`, `skipped`.

    Raises:
      ValueError: as `resolve_options`, or the weights do not fit into memory.
    """
    started = time.perf_counter()
    settings, spec = resolve_options(settings)
    dtype, memory = jnp.dtype(settings.dtype), find_memory_bytes()
    shapes = abstract_params(spec, dtype)
    weights = sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(shapes))
    if weights > memory:
        raise ValueError(
            f"{settings.arch} takes {weights / 1e9:.1f} GB in {settings.dtype}, and {memory / 1e9:.1f} GB are free: choose a "
            "smaller --arch, or fewer --layers for a try"
        )
    precision = "highest" if dtype == jnp.float32 else None
    with jax.default_matmul_precision(precision):
        progress("drawing weights")
        params = random_params(spec, dtype)
        params = params if settings.quantize is None else quantize_params(params, settings.quantize)
        progress("measuring the device's ceilings")
        report = _header(settings, params, memory)
        _measure(settings, params, report, started, progress, save)
    report["seconds"] = time.perf_counter() - started
    save(report)
    return report


def _header(settings: LatencyOptions, params: Params, memory: float) -> dict[str, Any]:
    megabytes, size = CEILING_SIZES[default_platform()]
    target, chosen = params.spec.target, registry.explain("tree_attention")
    given = dataclasses.asdict(settings) | {
        "target_layers": target.num_layers,
        "of_layers": architecture(settings.arch).target.num_layers,
    }
    return {
        "settings": given,
        **describe_environment(params),
        "attention_by": {"name": chosen.name, "reason": chosen.reason},
        "memory_bytes": memory,
        "cache_bytes": find_cache_bytes(),
        "ceilings": measure_ceilings(params.dtype, megabytes=megabytes, size=size),
        "records": [],
        "attention": [],
        "compile_seconds": {},
        "skipped": [],
    }


def _measure(
    settings: LatencyOptions, params: Params, report, started: float, progress, save
) -> None:
    """Fill in `records` and `attention`, step by step."""
    contexts = []
    for context in settings.contexts:
        needed = _needed(params, settings, context)
        if needed > report["memory_bytes"]:
            report["skipped"].append(
                f"context {context}: takes {needed / 1e9:.1f} GB, {report['memory_bytes'] / 1e9:.1f} GB are there"
            )
        else:
            contexts.append(context)

    def on_time() -> bool:
        return time.perf_counter() - started < 60 * settings.minutes

    groups = _groups(params, settings, contexts)
    caches: dict[tuple[int, ...], tuple[Caches, CompiledPiece]] = {}
    for kind, group, width in _steps(groups, settings.widths):
        name = f"{kind}, width {width}, context {', '.join(map(str, group))}"
        if not on_time():
            report["skipped"].append(f"{name}: no time left of {settings.minutes:g} minutes")
            continue
        progress(f"{name} ({time.perf_counter() - started:.0f} s)")
        try:
            if kind == "attention":
                report["attention"] += [
                    _attention(params, settings, width, context, report) for context in group
                ]
            else:
                if group not in caches:
                    caches.clear()  # those of the last group make room
                    caches[group] = _begin(params, settings, group)
                _cell(params, settings, group, width, *caches[group], report, on_time)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            caches.clear()
            report["skipped"].append(f"{name}: does not fit into memory")
        save(report)


def _needed(params: Params, settings: LatencyOptions, context: int) -> float:
    """Bytes of weights and caches, and of the scores where the reference makes them."""
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    configs = (params.spec.target, params.spec.drafter(DRAFTER))
    rows = max(settings.widths)
    capacity = context + count_slack(params, DRAFTER, settings.widths, default_platform())
    held = weights + settings.batch * capacity * sum(
        floors.count_kv_bytes(config, params.dtype) for config in configs
    )
    if (
        pick_implementation(
            params.spec.target, params.dtype, batch=settings.batch, rows=rows, capacity=capacity
        )
        == REFERENCE
    ):
        held += 12 * settings.batch * params.spec.target.num_heads * rows * capacity
    return held


def _groups(
    params: Params, settings: LatencyOptions, contexts: Sequence[int]
) -> list[tuple[int, ...]]:
    """Group contexts that share a capacity and thus programs.

    That is all of them, unless the reference attends, whose time grows with the capacity.
    """
    ordered = sorted(contexts, key=lambda context: abs(math.log(context / GOAL_CONTEXT)))
    if not ordered:
        return []
    shape = dict(batch=settings.batch, rows=max(settings.widths), capacity=max(ordered))
    if pick_implementation(params.spec.target, params.dtype, **shape) == REFERENCE:
        return [(context,) for context in ordered]
    return [tuple(ordered)]


def _steps(
    groups: Sequence[tuple[int, ...]], widths: Sequence[int]
) -> list[tuple[str, tuple[int, ...], int]]:
    """(kind, contexts, width) of every step: the goals' widths at the goals' context, their
    attention, then the others.
    """
    contexts = tuple(itertools.chain(*groups))
    first = [("round", group, width) for group in groups[:1] for width in widths]
    wanted = [step for step in first if step[2] in GOAL_WIDTHS]
    kernels = [("attention", contexts, width) for width in widths if contexts]
    steps = [*wanted, *(step for step in kernels if step[2] == GOAL_WIDTHS[0]), *first, *kernels]
    steps += [
        ("round", group, width)
        for group in groups[1:]
        for width in sorted(widths, key=lambda w: w not in GOAL_WIDTHS)
    ]
    return list(dict.fromkeys(steps))


def _begin(
    params: Params, settings: LatencyOptions, group: tuple[int, ...]
) -> tuple[Caches, CompiledPiece]:
    capacity = max(group) + count_slack(params, DRAFTER, settings.widths, default_platform())
    caches = Caches.random(params, DRAFTER, settings.batch, capacity)
    return caches, compile_ar(params, DRAFTER, caches, group[0], default_platform())


def _attention(
    params: Params, settings: LatencyOptions, width: int, context: int, report: dict[str, Any]
) -> dict[str, Any]:
    size = dict(
        batch=settings.batch, rows=width, context=context, cache_bytes=report["cache_bytes"]
    )
    times = 10 if default_platform() == "gpu" else 2
    return measure_attention(
        params.spec.target, params.dtype, **size, repeats=settings.repeats, times=times
    )


def _cell(
    params,
    settings: LatencyOptions,
    group,
    width: int,
    caches: Caches,
    plain: CompiledPiece,
    report,
    on_time,
) -> None:
    programs = compile_cell(
        params, DRAFTER, width, caches, group[0], default_platform(), settings.histogram, on_time
    )
    missing = {"round"} - {program.name for program in programs} if width > 1 else set()
    if missing:
        report["skipped"].append(
            f"rest of width {width}, context {group[0]}: no time left of {settings.minutes:g} minutes"
        )
    for program in (plain, *programs):
        key = f"{program.name}, width {1 if program.name == 'ar' else width}, context {', '.join(map(str, group))}"
        report["compile_seconds"][key] = program.compile_seconds
    for context in group:
        samples = time_programs(params, (plain, *programs), caches, context, settings.repeats)
        report["records"] += [
            make_record(program, width, context, samples[program.name], report, settings)
            for program in (plain, *programs)
        ]


def make_record(
    program: CompiledPiece,
    width: int,
    context: int,
    samples: Sequence[float],
    report,
    settings: LatencyOptions,
) -> dict[str, Any]:
    """One figure.

    `piece` of `width` rows (`ar`: timed together with that width) at `context`: `ms` (median),
    `quartiles`, `samples` in the order taken, `times` repetitions a sample, `kernels`. From what it
    must move and compute (`bytes`, `flops`, None where that does not say): `floor_ms`,
    `percent_of_floor` (100 is the floor itself), `bytes_per_second`, `flops_per_second`, `cached`
    (all of it fits into the last-level cache, so that the copy's bandwidth is no floor). `forced`
    rounds have `tokens_per_second` and `tokens_per_round`.
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
