"""A whole benchmark: timed decodes, the split of a round, and the report of both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxspec.bench.measure import measure
from jaxspec.bench.methods import Method
from jaxspec.bench.profile import profile
from jaxspec.bench.prompts import Prompt
from jaxspec.bench.report import environment, summarise


def benchmark(
    params,
    prompts: Sequence[Prompt],
    methods: Sequence[Method],
    *,
    repeats: int = 3,
    options: dict[str, Any] | None = None,
    with_profile: bool = True,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure `methods` (the first is `ar`) on `prompts`, ready for JSON.

    Returns:
      `device`, `versions`, `dtype`, `options`, `repeats`, `compile_seconds` {method: s}, and `results`, the flat records of
      `jaxspec.bench.summarise`.
    """
    runs, compile_seconds = measure(params, prompts, methods, repeats=repeats, options=options, progress=progress)
    progress("timing the phases of a round" if with_profile else "")
    split = profile(params, prompts, methods, options=options) if with_profile else None
    progress("")
    return {
        **environment(params),
        "options": dict(options or {}),
        "repeats": repeats,
        "compile_seconds": compile_seconds,
        "results": summarise(runs, prompts, split),
    }
