"""Measure the round costs of a session with its own compiled program."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.session import Session
from jaxspec.core.state import DecodeState
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.costs.row_costs import split_rounds
from jaxspec.round.plan import make_plan
from jaxspec.tuner.timed_rounds import PLAIN, TimeCompilation, count_rounds, time_rounds

# Times that each kind of round is timed, in turns, after a first round; the fastest counts.
PROBES = 2


def measure_costs(session: Session, state: DecodeState, compiles: TimeCompilation) -> RoundCosts:
    """Measure the round costs of a session on copies of its state.

    Args:
      session: its policy is the automatic one.
      state: after the prefill; it is not changed.
      compiles: see `jaxspec.tuner.timed_rounds.time_rounds`.
    """
    assert session.policy is not None, "only a policy reads costs"
    widths = session.policy.controls.costs.widths
    compiled = make_plan(session.params.spec, session.config).widths
    seconds = _time_kinds(session, state, (PLAIN, *compiled), compiles)
    # A round verifies with the smallest compiled width that holds its rows.
    place = np.minimum(np.searchsorted(compiled, widths), len(compiled) - 1)
    context = float(max(np.max(session.lengths), 1))
    return make_costs(widths, (context,), *split_rounds(seconds[:1], seconds[1:][place, None]))


def _time_kinds(
    session: Session, state: DecodeState, kinds: Sequence[int], compiles: TimeCompilation
) -> np.ndarray:
    """Return the seconds of a round of each kind."""
    # Room for tokens is rounded up, so that a probe fits even if the caller wants a single one.
    request = session.request.replace(
        limit=np.full_like(session.request.limit, session.max_tokens),
        stop=np.full_like(session.request.stop, -1),
    )
    fresh = state.replace(done=np.zeros(state.done.shape, bool))

    def run_kind(kind: int, count: int) -> tuple[float, int]:
        return time_rounds(session, request, _copy(fresh), kind, count, compiles)[1:]

    run_kind(PLAIN, 0)  # compiles
    first = [run_kind(kind, 1)[0] for kind in kinds]
    counts = [count_rounds(seconds) for seconds in first]
    samples = [[(seconds, 1)] for seconds in first]
    empty = np.inf
    for _ in range(PROBES):
        empty = min(empty, run_kind(PLAIN, 0)[0])
        for number, kind in enumerate(kinds):
            samples[number].append(run_kind(kind, counts[number]))
    return np.asarray(
        [
            min(max(seconds - empty, 0.1 * seconds) / max(rounds, 1) for seconds, rounds in kind)
            for kind in samples
        ]
    )


@jax.jit
def _copy(state: DecodeState) -> DecodeState:
    """Copy a state that rounds are to use up."""
    return jax.tree.map(jnp.copy, state)
