"""Measure what rounds take by draft steps and rows verified: the clock of policies that decide
about both.

The rounds are those of the decode loop, compiled once, with a policy of constant depth and size. A
round's time is taken to be a sum: so many draft steps, and the rest by the compiled width that
holds the rows. A step's time comes from the difference between depths, the rest from rounds of one
step. Rounds of other depths and sizes tell how far the sum is off.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.calibrate import SAMPLING, about, default_contexts, round_seconds, tokens_of
from jaxspec.core.params import Params
from jaxspec.costs.round_times import RoundTimes
from jaxspec.engine.plan import make_plan
from jaxspec.engine.session import prepare
from jaxspec.policies.controls.static_size import Constants, make_static


def measure_times(
    params: Params,
    method: str,
    widths: Sequence[int],
    *,
    contexts: Sequence[int] | None = None,
    repeats: int = 9,
    **options: Any,
) -> RoundTimes:
    """Median times of rounds, one sequence at a time; all depths and sizes take turns.

    Args:
      method: a drafter's name. widths: rows to compile verification for, ascending; the last is the
        tree's budget.
      contexts: cached tokens to measure at (None: 64, 256, 1,024, … as far as the model goes).
        repeats: samples of each time.
      options: of `jaxspec.decode`, without `budget` and `policy`.
    """
    widths = tuple(sorted({1, *widths}))
    tokens = tokens_of(params, {"method": method, "budget": widths[-1]} | options)
    contexts = contexts or default_contexts(params.spec.target.max_positions, tokens)
    parts, errors = [], []
    for context in contexts:
        plain, drafting = _sessions(params, method, widths, context, tokens, options)
        plan = make_plan(params.spec, drafting.config)
        deepest = plan.steps
        pairs = _pairs(widths, deepest)
        decided = [Constants(*map(jnp.int32, pair)) for pair in pairs]
        taken = round_seconds([(plain, None), *((drafting, one) for one in decided)], repeats)
        step, rest, error = _apart(taken[1:], len(widths), deepest, pairs)
        parts.append([step, taken[0], *rest])
        errors.append(error)
    step, plain, *rest = np.transpose(parts)
    told = about(params, method, options) | {
        "jax": jax.__version__,
        "dtype": str(params.dtype),
        "steps": deepest,
    }
    told |= {"error": round(float(max(errors)), 4)}
    return RoundTimes(widths, np.asarray(contexts, np.float64), step, np.array(rest), plain, told)


def _pairs(widths: Sequence[int], deepest: int) -> list[tuple[int, int]]:
    """(steps, rows) to measure: shallow rounds of every width, and a few deep ones."""
    deep = [(deepest, widths[len(widths) // 2]), (deepest // 2, widths[-1]), (deepest, widths[-1])]
    return [(min(1, deepest), width) for width in widths] + deep


def _apart(taken: np.ndarray, widths: int, deepest: int, pairs) -> tuple[float, np.ndarray, float]:
    """(step, rest [widths], largest relative error of their sums) from the times of `pairs`; the
    first ones are shallow.
    """
    shallow, place = taken[:widths], {rows: i for i, (_, rows) in enumerate(pairs[:widths])}
    step = 0.0
    if deepest:
        # Shallow rounds take one step: where there are no deeper ones, they are compared with those
        # of none.
        other = deepest if deepest > 1 else 0
        others = [
            (seconds, rows)
            for seconds, (steps, rows) in zip(taken, pairs, strict=True)
            if steps == other
        ]
        step = max(
            float(
                np.mean(
                    [(seconds - shallow[place[rows]]) / (other - 1) for seconds, rows in others]
                )
            ),
            0.0,
        )
    rest = np.maximum(shallow - step * pairs[0][0], 1e-9)
    predicted = np.array([rest[place[rows]] + step * depth for depth, rows in pairs])
    return step, rest, float(np.max(np.abs(predicted / taken - 1)))


def _sessions(params, method: str, widths, context: int, tokens: int, options):
    """Sessions of plain decoding and of drafting."""
    rng = np.random.default_rng(0)
    prompt = rng.integers(0, params.spec.target.vocab_size, context).tolist()
    common = {"max_new_tokens": tokens, "ignore_eos": True}
    fixed = {"method": method, "budget": widths[-1]} | options
    plan = make_plan(params.spec, prepare(params, [0], **fixed).config)
    policy = make_static(1 if plan.in_steps else None, widths[-1], widths=widths)
    sampling = {name: options[name] for name in SAMPLING if name in options}
    return tuple(
        prepare(params, prompt, **common, **settings)
        for settings in ({"method": "ar"} | sampling, fixed | {"policy": policy})
    )
