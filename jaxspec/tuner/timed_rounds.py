"""Time rounds of one kind: autoregressive, or drafted with a given number of rows."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable

import jax
import numpy as np

from jaxspec.call.session import Session
from jaxspec.core.state import DecodeState, Request
from jaxspec.round.loop import run

# Makes the context in which the rounds of a session may be compiled, see `jaxspec.call.hooks`.
TimeCompilation = Callable[[Session], contextlib.AbstractContextManager[None]]

# The kind of rounds that do not draft; others are called by their number of rows.
PLAIN = -1
# Aim of a timing in seconds, and the numbers of rounds that it may take for that.
AIM, LEAST, MOST = 0.03, 2, 8


def count_rounds(seconds: float) -> int:
    """Choose how many rounds to time, if each takes about `seconds`."""
    return int(np.clip(np.ceil(AIM / max(seconds, 1e-9)), LEAST, MOST))


def time_rounds(
    session: Session,
    request: Request,
    state: DecodeState,
    kind: int,
    count: int,
    compiles: TimeCompilation,
) -> tuple[DecodeState, float, int]:
    """Run rounds of one kind and time them, what a call takes without a round included.

    Args:
      session: with a policy of `jaxspec.policies.bastion`.
      request: the session's, or one with another limit.
      state: is donated.
      kind: PLAIN, or the number of rows to verify.
      count: rounds to run; 0 measures what a call takes.
      compiles: times their compilation.

    Returns:
      (the next state, seconds, rounds that ran; fewer than `count` where the text ended).
    """
    controls = request.controls.replace(rows=np.int32(kind))
    request, before = request.replace(controls=controls), _count(state)
    jax.block_until_ready((state, request))
    began = time.perf_counter()
    with compiles(session):
        state = jax.block_until_ready(
            run(session.params, request, state, np.int32(count), config=session.config)
        )
    return state, time.perf_counter() - began, _count(state) - before


def _count(state: DecodeState) -> int:
    # `np.max` of a device's array would compile a program.
    return int(np.asarray(state.rounds).max())
