"""Measurements of decoding: prompts, methods, timing, reports and the demonstration."""

from jaxspec.bench.benchmark import benchmark
from jaxspec.bench.measure import Run, measure
from jaxspec.bench.methods import Method, parse_methods
from jaxspec.bench.profile import profile
from jaxspec.bench.prompts import Prompt, read_prompts
from jaxspec.bench.report.summary import environment, summarise
from jaxspec.bench.report.table import table

__all__ = [
    "Method",
    "Prompt",
    "Run",
    "benchmark",
    "environment",
    "measure",
    "parse_methods",
    "profile",
    "read_prompts",
    "summarise",
    "table",
]
