"""Run a prepared call: its prefill, and rounds until every sequence is done."""

from __future__ import annotations

import time
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.hooks import UNTUNED, Hooks
from jaxspec.call.observed_rounds import run_observed, wants_each_round
from jaxspec.call.output import Output
from jaxspec.call.results import Seconds, StopSearch, Traces, make_outputs, record_round
from jaxspec.call.session import Session, matmul_precision
from jaxspec.call.shrink import ShrinkingBatch
from jaxspec.call.start import start_session
from jaxspec.core.runtime.compilations import compilations
from jaxspec.core.state import DecodeState, RecurrentState
from jaxspec.round.loop import run

# Rounds on the device between two looks of the host: for stop strings, and for finished sequences.
ROUNDS_PER_LOOK = 8
# Seconds between looks for nothing but Ctrl-C, which the host hears of only then.
SECONDS_PER_LOOK = 0.5


class Finished(NamedTuple):
    """A call after its last round.

    Attributes:
      session: of all sequences. It differs from the given one only if its policy observes every
        round.
      state: of all sequences; on the host and without caches if the batch shrank.
      traces: the rounds of each sequence, or None.
      shrunk: whether the last rounds ran on a part of the sequences.
    """

    session: Session
    state: DecodeState
    traces: Traces | None
    shrunk: bool


def run_session(
    session: Session,
    trace: bool = False,
    shrink: bool | None = False,
    hooks: Hooks = UNTUNED,
) -> tuple[list[Output], DecodeState]:
    """Run a prepared call to its end.

    Args:
      trace, shrink: see `run_to_end`.
      hooks: who tunes it.

    Returns:
      The outputs of its prompts, and the state after the last round, without caches if the batch
      shrank.
    """
    with matmul_precision(session):
        started = time.perf_counter()
        state, prefill = start_session(session, hooks)
        session = hooks.after_prefill(session, state)
        decoding, compiled = time.perf_counter(), compilations()
        if not trace:
            session, state = hooks.before_rounds(session, state)
        session, state, traces, shrunk = run_to_end(session, state, trace, shrink, hooks)
        seconds = Seconds(prefill, time.perf_counter() - decoding, decoding - started - prefill)
    observed = wants_each_round(session)  # and has learned from every round
    rounds_only = not (trace or session.stop_strings or shrunk or observed)
    rounds_only = rounds_only and compilations() == compiled
    # Processes measure different times. What a policy learns from them would differ.
    rounds_only = rounds_only and jax.process_count() == 1
    outputs = make_outputs(session, state, seconds, traces, rounds_only)
    hooks.observe(session, outputs, rounds_only)
    return outputs, state


def run_to_end(
    session: Session,
    state: DecodeState,
    trace: bool = False,
    shrink: bool | None = False,
    hooks: Hooks = UNTUNED,
) -> Finished:
    """Run rounds until every sequence is done.

    The host looks every `SECONDS_PER_LOOK`, so that Ctrl-C can end the call, or every few rounds if
    it searches for stop strings or shrinks the batch, or after each if it traces or the policy
    observes each.

    Args:
      session: see `jaxspec.call.session.prepare`.
      state: after the prefill; it is donated.
      trace: record every round.
      shrink: leave finished sequences out, see `jaxspec.call.shrink`; None: once that pays.
      hooks: who tunes the call.
    """
    batch = ShrinkingBatch(session, hooks, asked=shrink is not None)
    shrink = len(session.lengths) > 1 and (hooks.may_shrink(session) if shrink is None else shrink)
    pace = _Pace(session, hooks, looks=bool(session.stop_strings or shrink))
    traces: Traces | None = [[] for _ in session.lengths] if trace else None
    searches: list[StopSearch] = []
    if session.stop_strings:
        searches = [StopSearch(session, b) for b in range(len(session.lengths))]
    while True:
        if searches:
            state = _end_stopped(state, batch.select(searches))
        if bool(np.asarray(state.done).all()):
            break
        if shrink:
            session, state = batch.shrink(session, state)
        before: tuple[RecurrentState, ...] = ()
        if traces is not None:  # the round is given the states' own arrays
            before = jax.tree.map(jnp.copy, state.cache.recurrent)
        if wants_each_round(session):
            session, state = run_observed(session, state)
        elif traces is None:
            state = pace.run(session, state)
        else:
            state = run_rounds(session, state, 1, hooks)
        if traces is not None:
            record_round(session, before, state, batch.select(traces))
    if batch.shrunk:
        # Costs of smaller batches are not those that the call's policy may learn.
        return Finished(batch.session, batch.join(state), traces, True)
    return Finished(session, jax.block_until_ready(state), traces, False)


class _Pace:
    """Chooses how many rounds run between two looks of the host.

    Args:
      session: of the whole batch.
      hooks: who may remember the pace of earlier calls.
      looks: whether the host looks every few rounds for more than Ctrl-C.
    """

    def __init__(self, session: Session, hooks: Hooks, looks: bool):
        # Clocks of several processes differ, and all must run the same number of rounds.
        self._timed = not looks and jax.process_count() == 1
        self._hooks, self._whole, self._most = hooks, session, session.max_tokens
        self._rounds = ROUNDS_PER_LOOK if looks or self._timed else self._most
        known = hooks.recall_pace(session) if self._timed else None
        if known is not None:
            self._rounds = self._fit(known)

    def run(self, session: Session, state: DecodeState) -> DecodeState:
        """Run rounds; wait for them if they are timed."""
        if not self._timed:
            return run_rounds(session, state, self._rounds, self._hooks)
        before, began = _count(state), time.perf_counter()
        state = jax.block_until_ready(run_rounds(session, state, self._rounds, self._hooks))
        seconds = (time.perf_counter() - began) / max(_count(state) - before, 1)
        self._hooks.note_pace(self._whole, seconds)
        # Later rounds may take longer: they draft, or their contexts are longer.
        self._rounds = min(self._fit(seconds), 8 * self._rounds)
        return state

    def _fit(self, seconds: float) -> int:
        fitting = SECONDS_PER_LOOK / max(seconds, 1e-6)
        return int(min(max(fitting, ROUNDS_PER_LOOK), self._most))


def _count(state: DecodeState) -> int:
    return int(np.asarray(state.rounds).max())


def _end_stopped(state: DecodeState, searches: list[StopSearch]) -> DecodeState:
    """End the sequences in which a stop string is complete."""
    read = zip(searches, np.asarray(state.tokens), np.asarray(state.emitted), strict=True)
    found = [search.read(tokens, int(count)) for search, tokens, count in read]
    return state.replace(done=np.asarray(state.done) | np.asarray(found))


def run_rounds(
    session: Session, state: DecodeState, rounds: int, hooks: Hooks = UNTUNED
) -> DecodeState:
    """Run rounds on the device; `state` is donated."""
    with hooks.timing_compilation(session):
        return run(session.params, session.request, state, np.int32(rounds), config=session.config)
