"""Where a round's time goes: the phases of the loop compiled and timed one by one."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.bench.methods import Method
from jaxspec.bench.prompts import Prompt
from jaxspec.bench.report.summary import ALL, PHASES
from jaxspec.core.state import DecodeState
from jaxspec.engine.commit import absorb, commit
from jaxspec.engine.draft import draft
from jaxspec.engine.grow import grow
from jaxspec.engine.round import Round, compile_phase
from jaxspec.engine.session import Session, precision, prefilled, prepare
from jaxspec.engine.verify import verify


def draw_noise(round: Round, state: DecodeState) -> jax.Array | None:
    """The round's sampling noise; None for greedy decoding."""
    return round.noise(state.cache.length + 1, round.plan.longest)


run_noise = compile_phase(draw_noise)
run_draft = compile_phase(draft)
run_grow = compile_phase(grow)
run_verify = compile_phase(verify)
run_commit = compile_phase(commit, donate_state=True)
run_absorb = compile_phase(absorb, donate_state=True)


def profile(
    params,
    prompts: Sequence[Prompt],
    methods: Sequence[Method],
    *,
    options: dict[str, Any] | None = None,
    rounds: int = 16,
) -> dict[tuple[str, str], dict[str, float]]:
    """Milliseconds that each phase of a round takes, medians over up to `rounds` rounds of one
    prompt per domain.

    `draft` is the drafter's forwards and the ranking of its candidates, `tree` their assembly (that
    of a tree that grows with its drafter is part of `draft`), `verify` the target's forward and
    acceptance, `absorb` the drafter's intake of new features, which for drafters such as EAGLE-3 is
    a forward too, `rest` the sampling noise and the cache updates. Phases are separate programs
    here: dispatch adds a little to each, and what XLA overlaps or fuses across phases is not seen.

    Methods take turns round by round, so that drift of the machine falls on all of them alike.

    Returns:
      {(method, domain): {phase: ms}}, with domain `all` over every prompt used.
    """
    first = {prompt.domain: prompt for prompt in reversed(prompts)}
    samples: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for domain, prompt in first.items():
        sessions = {
            m.name: prepare(params, prompt.content, **{**(options or {}), **m.options})
            for m in methods
        }
        for name, seconds in _rounds(sessions, rounds):
            samples[name, domain].append(seconds)
            samples[name, ALL].append(seconds)
    return {
        key: {phase: float(np.median([1e3 * s[phase] for s in some])) for phase in PHASES}
        for key, some in samples.items()
    }


def _rounds(sessions: dict[str, Any], rounds: int) -> Iterator[tuple[str, dict[str, float]]]:
    """(method, seconds per phase) of up to `rounds` rounds of each session, one of each in turn."""
    states = {}
    for name, session in sessions.items():
        with precision(session):
            time_round(session, prefilled(session))  # compiles; its result is thrown away
            states[name] = prefilled(session)
    for _ in range(rounds):
        for name, session in sessions.items():
            if not bool(np.all(states[name].done)):
                with precision(session):
                    states[name], seconds = time_round(session, states[name])
                yield name, seconds


def time_round(session: Session, state: DecodeState) -> tuple[DecodeState, dict[str, float]]:
    """Run one round phase by phase: the next state, and seconds by phase. `state` is donated."""
    seconds: dict[str, float] = defaultdict(float)

    def timed(phase, function, *args):
        started = time.perf_counter()
        result = jax.block_until_ready(
            function(session.params, session.request, *args, config=session.config)
        )
        seconds[phase] += time.perf_counter() - started
        return result

    jax.block_until_ready(state)
    noise = timed("rest", run_noise, state)
    drafted = timed("draft", run_draft, state, noise)
    tree = timed("tree", run_grow, state, drafted)
    verified = timed("verify", run_verify, state, tree, noise, drafted.logprob)
    state, committed = timed("rest", run_commit, state, tree, verified)
    if session.config.method == "ar":
        return state, seconds | {"absorb": 0.0}
    return timed("absorb", run_absorb, state, committed), seconds
