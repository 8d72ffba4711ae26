"""Plan the steps of a latency report: which contexts share programs, which steps come first, and
how much memory they need.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import jax

from jaxspec.bench.latency.attention_alone import REFERENCE, pick_implementation
from jaxspec.bench.latency.cell import Caches, count_slack
from jaxspec.bench.latency.latency_options import LatencyOptions, default_platform, read_method
from jaxspec.core.params import Params

# The goals' widths and context are measured first.
GOAL_WIDTHS, GOAL_CONTEXT = (64, 256), 1024


def count_needed_bytes(params: Params, settings: LatencyOptions, context: int) -> float:
    """Count the bytes of weights and caches, and of the scores if the reference computes them."""
    weights = sum(leaf.nbytes for leaf in jax.tree.leaves(params))
    rows, method = max(settings.widths), read_method(settings.method)
    capacity = context + count_slack(params, method, settings.widths, default_platform())

    def make_caches():
        caches = Caches.random(params, method.drafter, settings.batch, capacity)
        return caches.target, caches.draft

    caches = jax.tree.leaves(jax.eval_shape(make_caches))
    held = weights + sum(leaf.size * leaf.dtype.itemsize for leaf in caches)
    if (
        pick_implementation(
            params.spec.target, params.dtype, batch=settings.batch, rows=rows, capacity=capacity
        )
        == REFERENCE
    ):
        held += 12 * settings.batch * params.spec.target.num_heads * rows * capacity
    return held


def group_contexts(
    params: Params, settings: LatencyOptions, contexts: Sequence[int]
) -> list[tuple[int, ...]]:
    """Group contexts that share a capacity and thus programs.

    That is all of them, unless the reference computes attention: its time grows with the capacity.
    """
    ordered = sorted(contexts, key=lambda context: abs(math.log(context / GOAL_CONTEXT)))
    if not ordered:
        return []
    shape = dict(batch=settings.batch, rows=max(settings.widths), capacity=max(ordered))
    if pick_implementation(params.spec.target, params.dtype, **shape) == REFERENCE:
        return [(context,) for context in ordered]
    return [tuple(ordered)]


def order_steps(
    groups: Sequence[tuple[int, ...]], widths: Sequence[int]
) -> list[tuple[str, tuple[int, ...], int]]:
    """List (kind, contexts, width) of every step: the goals' widths at the goals' context, their
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
