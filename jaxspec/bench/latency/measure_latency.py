"""`jaxspec bench latency`: time the pieces of a round against the device's measured ceilings."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.bench.architectures import abstract_params, architecture, random_params
from jaxspec.bench.latency.attention_alone import measure_attention
from jaxspec.bench.latency.cell import (
    Caches,
    CompiledPiece,
    compile_ar,
    compile_cell,
    count_slack,
    time_programs,
)
from jaxspec.bench.latency.latency_options import (
    LatencyOptions,
    default_platform,
    read_method,
    resolve_options,
)
from jaxspec.bench.latency.latency_records import make_record
from jaxspec.bench.latency.steps import count_needed_bytes, group_contexts, order_steps
from jaxspec.bench.report.summary import describe_environment
from jaxspec.core.params import Params
from jaxspec.round.plan import make_plan
from jaxspec.targets.layouts.quant import quantize_params
from jaxspec.tuner.calibrate.ceilings import (
    CEILING_SIZES,
    find_cache_bytes,
    find_memory_bytes,
    measure_ceilings,
)
from pallas_kernels import registry


def measure_latency(
    settings: LatencyOptions,
    progress: Callable[[str], None] = lambda line: None,
    save: Callable[[dict[str, Any]], None] = lambda report: None,
) -> dict[str, Any]:
    """Measure the most important pieces first; `skipped` lists those without memory or time.

    Args:
      progress: called with a line of text now and then.
      save: called with the report so far after every step.

    Returns:
      A report ready for JSON: `settings`, device and versions (see `describe_environment`),
      `memory_bytes`, `cache_bytes`, `ceilings`, `records` (one per piece, width and context, see
      `make_record`), `attention` (see `measure_attention`), `compile_seconds`, `seconds`,
      `skipped`.

    Raises:
      ValueError: as `resolve_options`; or the weights do not fit into memory.
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
        needed = count_needed_bytes(params, settings, context)
        if needed > report["memory_bytes"]:
            report["skipped"].append(
                f"context {context}: takes {needed / 1e9:.1f} GB, {report['memory_bytes'] / 1e9:.1f} GB are there"
            )
        else:
            contexts.append(context)

    def on_time() -> bool:
        return time.perf_counter() - started < 60 * settings.minutes

    groups = group_contexts(params, settings, contexts)
    caches: dict[tuple[int, ...], tuple[Caches, CompiledPiece]] = {}
    for kind, group, width in order_steps(groups, settings.widths):
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
                    caches.clear()  # free those of the last group
                    caches[group] = _begin(params, settings, group)
                _cell(params, settings, group, width, *caches[group], report, on_time)
        except jax.errors.JaxRuntimeError as error:
            if "RESOURCE_EXHAUSTED" not in str(error):
                raise
            caches.clear()
            report["skipped"].append(f"{name}: does not fit into memory")
        save(report)


def _begin(
    params: Params, settings: LatencyOptions, group: tuple[int, ...]
) -> tuple[Caches, CompiledPiece]:
    method = read_method(settings.method)
    capacity = max(group) + count_slack(params, method, settings.widths, default_platform())
    caches = Caches.random(params, method.drafter, settings.batch, capacity)
    return caches, compile_ar(params, method, caches, group[0], default_platform())


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
    where = (width, caches, group[0], default_platform())
    method = read_method(settings.method)
    programs = compile_cell(params, method, *where, settings.histogram, on_time)
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
            | {"depth": make_plan(params.spec, program.config).longest - 1}
            for program in (plain, *programs)
        ]
