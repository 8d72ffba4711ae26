"""Measure the round costs of a session with its own compiled program."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.automatic import is_probed, remember_policy, save_setting
from jaxspec.call.drafter_choice import record_speed
from jaxspec.call.output import Output
from jaxspec.call.session import Session
from jaxspec.call.timed_rounds import PLAIN, count_rounds, time_rounds
from jaxspec.core.state import DecodeState
from jaxspec.costs.round_costs import make_costs
from jaxspec.costs.row_costs import split_rounds
from jaxspec.round.plan import make_plan

# Times that each kind of round is timed, in turns, after a first round; the fastest counts.
PROBES = 2


def probe_session(session: Session, state: DecodeState) -> Session:
    """Measure the round costs of a session on copies of its state, and keep them on disk.

    Sessions without the automatic policy, or with known costs, are returned as they are.

    Args:
      session: see `jaxspec.call.session.prepare`.
      state: after the prefill; it is not changed.

    Returns:
      The session with the measured costs in its policy and request.
    """
    if not session.automatic or session.policy is None or is_probed(session.policy):
        return session
    widths = session.policy.controls.costs.widths
    compiled = make_plan(session.params.spec, session.config).widths
    seconds = _time_kinds(session, state, (PLAIN, *compiled))
    # A round verifies with the smallest compiled width that holds its rows.
    place = np.minimum(np.searchsorted(compiled, widths), len(compiled) - 1)
    context = float(max(np.max(session.lengths), 1))
    costs = make_costs(widths, (context,), *split_rounds(seconds[:1], seconds[1:][place, None]))
    policy = save_setting(session.params, session.config, len(session.lengths), costs)
    policy = policy.replace(state=session.policy.state, temperature=session.policy.temperature)
    return dataclasses.replace(
        session, policy=policy, request=session.request.replace(controls=policy.controls)
    )


def _time_kinds(session: Session, state: DecodeState, kinds: Sequence[int]) -> np.ndarray:
    """Return the seconds of a round of each kind."""
    # Room for tokens is rounded up, so that a probe fits even if the caller wants a single one.
    request = session.request.replace(
        limit=np.full_like(session.request.limit, session.max_tokens),
        stop=np.full_like(session.request.stop, -1),
    )
    fresh = state.replace(done=np.zeros(state.done.shape, bool))

    def run_kind(kind: int, count: int) -> tuple[float, int]:
        return time_rounds(session, request, _copy(fresh), kind, count)[1:]

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


def keep_learned(session: Session, outputs: Sequence[Output], rounds_only: bool) -> None:
    """Let this process's later calls go on with what a call learned.

    Args:
      session: of the call; nothing is kept without the automatic policy.
      outputs: of the call.
      rounds_only: whether the measured seconds are those of rounds alone.
    """
    policy, batch = outputs[0].policy, len(outputs)
    if not session.automatic or policy is None:
        return
    remember_policy(session.params, session.config, batch, policy)
    if rounds_only:
        tokens = sum(out.stats.emitted - 1 for out in outputs)
        method, greedy = session.config.drafter, session.config.sampling.greedy
        seconds = outputs[0].stats.decode_seconds
        record_speed(session.params, method, batch, greedy, tokens, seconds)
