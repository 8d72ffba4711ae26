"""Rounds that the host times one by one, for policies that correct themselves after each."""

from __future__ import annotations

import dataclasses
from time import perf_counter

import jax
import numpy as np

from jaxspec.call.session import Session
from jaxspec.core.runtime.compilations import compilations
from jaxspec.core.state import DecodeState
from jaxspec.round.loop import run


def wants_each_round(session: Session) -> bool:
    """Whether the session's policy asks for the time of every round.

    Processes measure different times and would decide differently, so several observe none.
    """
    asks = session.policy is not None and session.policy.config.each_round
    return asks and jax.process_count() == 1


def run_observed(session: Session, state: DecodeState) -> tuple[Session, DecodeState]:
    """Run a round, wait for it, and show its time to the policy if nothing compiled meanwhile.

    Args:
      session: its policy is asked by `wants_each_round`.
      state: before the round; it is donated.

    Returns:
      The session with the policy's new controls, which the next round reads, and the state. The
      controls are traced, so they compile nothing.
    """
    policy = session.policy
    assert policy is not None, "only a policy observes rounds"
    before, compiled = jax.device_get(state.control), compilations()
    jax.block_until_ready(state)
    began = perf_counter()
    state = jax.block_until_ready(
        run(session.params, session.request, state, np.int32(1), config=session.config)
    )
    seconds = perf_counter() - began
    if compilations() != compiled:
        return session, state
    controls = policy.config.observe_seconds(
        policy.controls, before, jax.device_get(state.control), seconds
    )
    request = session.request.replace(controls=controls)
    policy = policy.replace(controls=controls)
    return dataclasses.replace(session, policy=policy, request=request), state
