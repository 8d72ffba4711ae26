"""Run the rounds of a call until every sequence is done."""

from __future__ import annotations

from typing import NamedTuple

import jax
import numpy as np

from jaxspec.core.state import DecodeState
from jaxspec.engine.loop import run
from jaxspec.engine.observed_rounds import run_observed, wants_each_round
from jaxspec.engine.results import StopSearch, Traces, record_round
from jaxspec.engine.session import Session
from jaxspec.engine.shrink import ShrinkingBatch
from jaxspec.engine.shrink_choice import may_shrink, noting_compilation

# Rounds on the device between two looks of the host: for stop strings, and for finished sequences.
ROUNDS_PER_LOOK = 8


class Finished(NamedTuple):
    """A call after its last round.

    Attributes:
      session: of all sequences. It differs from the given one only if its policy observes every
        round of a trace.
      state: of all sequences; on the host and without caches if the batch shrank.
      traces: the rounds of each sequence, or None.
      shrunk: whether the last rounds ran on a part of the sequences.
    """

    session: Session
    state: DecodeState
    traces: Traces | None
    shrunk: bool


def run_to_end(
    session: Session, state: DecodeState, trace: bool = False, shrink: bool | None = False
) -> Finished:
    """Run rounds until every sequence is done.

    One call of the device loop does it all, unless the host searches for stop strings, shrinks the
    batch or traces.

    Args:
      session: see `jaxspec.engine.session.prepare`.
      state: after the prefill; it is donated.
      trace: record every round.
      shrink: leave finished sequences out, see `jaxspec.engine.shrink`; None: once that pays.
    """
    batch = ShrinkingBatch(session, asked=shrink is not None)
    shrink = len(session.lengths) > 1 and (may_shrink(session) if shrink is None else shrink)
    looks = ROUNDS_PER_LOOK if session.stop_strings or shrink else session.max_tokens
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
        if traces is None:
            state = run_rounds(session, state, looks)
            continue
        if wants_each_round(session):
            session, state = run_observed(session, state)
        else:
            state = run_rounds(session, state, 1)
        record_round(state, batch.select(traces))
    if batch.shrunk:
        # Costs of smaller batches are not those that the call's policy may learn.
        return Finished(batch.session, batch.join(state), traces, True)
    return Finished(session, jax.block_until_ready(state), traces, False)


def _end_stopped(state: DecodeState, searches: list[StopSearch]) -> DecodeState:
    """End the sequences in which a stop string is complete."""
    read = zip(searches, np.asarray(state.tokens), np.asarray(state.emitted), strict=True)
    found = [search.read(tokens, int(count)) for search, tokens, count in read]
    return state.replace(done=np.asarray(state.done) | np.asarray(found))


def run_rounds(session: Session, state: DecodeState, rounds: int) -> DecodeState:
    """Run rounds on the device; `state` is donated."""
    with noting_compilation(session):
        return run(session.params, session.request, state, np.int32(rounds), config=session.config)
