"""Measure what rounds cost by draft steps and rows verified, for policies that decide about both.

The rounds are those of the decode loop, compiled once with a policy of constant depth and size. The
model of a round's time is a sum: a time for each draft step, plus a rest that depends on the
compiled width that holds the rows. The time of a step comes from the difference between depths, the
rest from rounds of one step. Rounds of other depths and sizes give the error of the sum.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.params import Params
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.policies.rules.static import Constants, make_static
from jaxspec.tuner.calibrate.by_rows import SAMPLING, about
from jaxspec.tuner.calibrate.round_clock import Case, plan_rounds, time_rounds

# A saved policy keeps the fingerprint of the round costs of its training under this name.
STEP_COSTS = "round costs by steps"


def calibrate_steps(
    params: Params,
    drafter: str,
    widths: Sequence[int],
    *,
    contexts: Sequence[int] | None = None,
    repeats: int = 9,
    **options: Any,
) -> RoundCosts:
    """Measure median times of rounds of one sequence, by draft steps, rows and cached tokens.

    Args:
      drafter: a drafter's name.
      widths: rows to compile verification for, ascending; the last is the tree's budget.
      contexts: numbers of cached tokens (None: 64, 256, 1,024, … up to the model's positions).
      repeats: samples of each time.
      options: keyword arguments of `jaxspec.decode`, without `budget` and `policy`.

    Returns:
      The costs. Their `about` holds `steps`, the most draft steps that were measured, and `error`,
      the largest relative error of the sum.
    """
    widths = tuple(sorted({1, *widths}))
    fixed = {"drafter": drafter, "budget": widths[-1]} | options
    plan = plan_rounds(params, fixed)
    deepest = plan.steps
    policy = make_static(1 if plan.in_steps else None, widths[-1], widths=widths)
    drafting = fixed | {"policy": policy}
    sampling = {name: options[name] for name in SAMPLING if name in options}
    pairs = _pairs(widths, deepest)
    cases = [
        Case({"drafter": "ar"} | sampling),
        *(Case(drafting, Constants(*map(jnp.int32, pair))) for pair in pairs),
    ]
    contexts, seconds = time_rounds(params, cases, contexts, repeats=repeats)
    parts = [_separate(own[1:], len(widths), deepest, pairs) for own in seconds]
    step, rest, error = zip(*parts, strict=True)
    measured = {
        "jax": jax.__version__,
        "dtype": str(params.dtype),
        "steps": deepest,
        "error": round(float(max(error)), 4),
    }
    return make_costs(
        widths,
        contexts,
        0.0,
        np.transpose(rest),
        plain=seconds[:, 0],
        step=step,
        about=about(params, drafter, options) | measured,
    )


def _pairs(widths: Sequence[int], deepest: int) -> list[tuple[int, int]]:
    """List the (steps, rows) to measure: shallow rounds of every width, and a few deep ones."""
    deep = [(deepest, widths[len(widths) // 2]), (deepest // 2, widths[-1]), (deepest, widths[-1])]
    return [(min(1, deepest), width) for width in widths] + deep


def _separate(
    taken: np.ndarray, widths: int, deepest: int, pairs: Sequence[tuple[int, int]]
) -> tuple[float, np.ndarray, float]:
    """Split times into a sum.

    Args:
      taken: float64 [pairs], seconds of rounds of `pairs`; the first `widths` of them are shallow.

    Returns:
      (seconds of a step, seconds of the rest float64 [widths], largest relative error of the sums).
    """
    shallow, place = taken[:widths], {rows: i for i, (_, rows) in enumerate(pairs[:widths])}
    step = 0.0
    if deepest:
        # Shallow rounds take one step. If none is deeper, compare them with rounds of no steps.
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
