"""Run rounds that replay a histogram of acceptance, for the speed at a published acceptance length.

Every round does all of its work, acceptance included; only the number of rows that it commits comes
from the histogram. The text is meaningless.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.state import DecodeState
from jaxspec.round.commit import absorb, commit
from jaxspec.round.context import Verified, make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow
from jaxspec.round.plan import DecodeConfig
from jaxspec.round.quick_jit import quick_jit
from jaxspec.round.verify import verify


def read_histogram(text: str) -> tuple[float, ...]:
    """Read the value of `--force-acceptance`: a file, a JSON list or a number.

    Entry i of a list is the share of rounds that commit i tokens, the bonus included, as in
    `accept_hist` of the reports. Shares sum to 1; if all entries are whole numbers they are counts
    of rounds. A single number is a mean length, which gives rounds of the two whole lengths next to
    it. A file holds a list, or an object with a list under `accept_hist`.

    Raises:
      ValueError: the text is none of these, a share is below 0, shares do not sum to 1, or rounds
        commit nothing.
    """
    path = Path(text)
    source = path.read_text(encoding="utf-8") if path.suffix == ".json" or path.is_file() else text
    try:
        value = json.loads(source)
    except json.JSONDecodeError:
        raise ValueError(
            f"--force-acceptance {text}: give a mean length, a JSON list or a .json file of one"
        ) from None
    value = value.get("accept_hist") if isinstance(value, dict) else value
    if isinstance(value, int | float) and not isinstance(value, bool):
        return _two_points(float(value))
    if (
        not isinstance(value, list)
        or not value
        or not all(type(share) in (int, float) for share in value)
    ):
        raise ValueError(
            f"--force-acceptance {text}: expected a number, or a list of shares of rounds by "
            "tokens committed"
        )
    return _shares(value)


def _two_points(mean: float) -> tuple[float, ...]:
    if not (math.isfinite(mean) and mean >= 1):
        raise ValueError(
            f"acceptance length {mean:g}: every round commits at least 1 token, the bonus included"
        )
    low = math.floor(mean)
    return (*(0.0 for _ in range(low)), 1 - (mean - low), mean - low)


def _shares(values: Sequence[float]) -> tuple[float, ...]:
    total = sum(values)
    if min(values) < 0 or not math.isfinite(total):
        raise ValueError("acceptance histogram: shares of rounds are finite and not below 0")
    if all(isinstance(value, int) for value in values) and total > 0:
        values = [value / total for value in values]
    elif not math.isclose(total, 1, abs_tol=1e-6):
        raise ValueError(f"acceptance histogram sums to {total:g}: shares of rounds must sum to 1")
    if values[0]:
        raise ValueError(
            "acceptance histogram: entry 0 must be 0, for every round commits its bonus token"
        )
    return tuple(float(value) for value in values)


def order_histogram(histogram: Sequence[float], rounds: int, longest: int) -> np.ndarray:
    """Choose the tokens that each round commits, int32 [rounds], in a fixed mixed order.

    Their counts follow the histogram, rounded to whole rounds.

    Raises:
      ValueError: the histogram has rounds longer than `longest`.
    """
    most = max(i for i, share in enumerate(histogram) if share)
    if most > longest:
        raise ValueError(
            f"acceptance histogram: rounds of {most} tokens, but trees of this width commit at "
            f"most {longest}"
        )
    exact = np.asarray(histogram) * rounds
    counts = np.floor(exact).astype(int)
    # Give the rounds that are left to the largest remainders.
    counts[np.argsort(counts - exact, kind="stable")[: rounds - counts.sum()]] += 1
    lengths = np.repeat(np.arange(len(counts)), counts).astype(np.int32)
    return np.random.default_rng(0).permutation(lengths)


@quick_jit(static_argnames=("config",), donate_argnames=("state",))
def run_forced(
    params, request, state: DecodeState, lengths: jax.Array, *, config: DecodeConfig
) -> DecodeState:
    """Run greedy rounds like `loop.run`, one for each entry of `lengths` int32 [R]: round i commits
    lengths[i] tokens.
    """

    round = make_round(params, request, config)

    def body(carry):
        state, i = carry
        drafted = draft(round, state, None)
        tree = grow(round, state, drafted)
        verified = force_length(verify(round, state, tree, None), lengths[i])
        state, committed = commit(round, state, tree, verified)
        return absorb(round, state, committed), i + 1

    return jax.lax.while_loop(lambda carry: carry[1] < lengths.shape[0], body, (state, 0))[0]


def force_length(verified: Verified, length: jax.Array) -> Verified:
    """Replace the paths' lengths by `length`; the result still depends on the true count."""
    accepted = verified.accepted
    return verified._replace(
        accepted=accepted.replace(count=length + jnp.minimum(accepted.count, 0))
    )
