"""Measure the round costs of a session with its own compiled program."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.state import DecodeState, Request
from jaxspec.costs.round_costs import make_costs
from jaxspec.costs.split import split_rounds
from jaxspec.engine.automatic import is_probed, remember_policy, save_setting
from jaxspec.engine.drafter_choice import record_speed
from jaxspec.engine.loop import run
from jaxspec.engine.output import Output
from jaxspec.engine.session import Session

# Rounds of a probe of each width, and probes of which the fastest counts.
PROBE_ROUNDS, PROBES = 2, 2


def probe_session(session: Session, state: DecodeState) -> Session:
    """Measure the round costs of a session on copies of its state, and keep them on disk.

    Sessions without the automatic policy, or with known costs, are returned as they are.

    Args:
      session: see `jaxspec.engine.session.prepare`.
      state: after the prefill; it is not changed.

    Returns:
      The session with the measured costs in its policy and request.
    """
    if not session.automatic or session.policy is None or is_probed(session.policy):
        return session
    widths = session.policy.controls.costs.widths
    sizes = (-1, *widths)
    # Room for tokens is rounded up, so that a probe fits even if the caller wants a single one.
    request = session.request.replace(
        limit=jnp.full_like(session.request.limit, session.max_tokens),
        stop=jnp.full_like(session.request.stop, -1),
    )
    fresh = state.replace(done=jnp.zeros_like(state.done))

    def time_rounds(rows: int) -> float:
        controls = session.policy.controls.replace(rows=jnp.int32(rows))
        best = np.inf
        for probe in range(PROBES + (rows == sizes[0])):  # the very first run compiles
            begun = jax.block_until_ready(jax.tree.map(jnp.copy, fresh))
            seconds, rounds = _time_run(session, request.replace(controls=controls), begun)
            if probe or rows != sizes[0]:
                best = min(best, seconds / max(rounds, 1))
        return best

    plain, *drafted = (time_rounds(rows) for rows in sizes)
    context = float(max(np.max(session.lengths), 1))
    costs = make_costs(widths, (context,), *split_rounds([plain], np.c_[drafted]))
    policy = save_setting(session.params, session.config, len(session.lengths), costs)
    policy = policy.replace(state=session.policy.state, temperature=session.policy.temperature)
    return dataclasses.replace(
        session, policy=policy, request=session.request.replace(controls=policy.controls)
    )


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
        method, greedy = session.config.method, session.config.sampling.greedy
        seconds = outputs[0].stats.decode_seconds
        record_speed(session.params, method, batch, greedy, tokens, seconds)


def _time_run(session: Session, request: Request, state: DecodeState) -> tuple[float, int]:
    """Return the seconds and number of rounds of a run from `state`, which is donated."""
    before = np.asarray(state.rounds).copy()
    began = time.perf_counter()
    state = jax.block_until_ready(
        run(session.params, request, state, jnp.int32(PROBE_ROUNDS), config=session.config)
    )
    return time.perf_counter() - began, int(np.max(np.asarray(state.rounds) - before))
