"""Where a round's time goes: the phases of the loop compiled and timed one by one."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import numpy as np

from jaxspec.bench.methods import Method
from jaxspec.bench.prompts import Prompt
from jaxspec.bench.report.summary import ALL, PHASES
from jaxspec.engine import grow, loop
from jaxspec.engine.plan import make_plan
from jaxspec.engine.session import precision, prefilled, prepare

_static = {"static_argnames": ("config",)}
_draft = jax.jit(grow.draft, **_static)
_grow = jax.jit(grow.grow, **_static)
_verify = jax.jit(loop.verify, **_static)
_commit = jax.jit(loop.commit, donate_argnames=("state",), **_static)
_absorb = jax.jit(loop.absorb, donate_argnames=("state",), **_static)


@functools.partial(jax.jit, **_static)
def _noise(params, request, state, config):
    return loop.noise_at(
        params, request, config, state.cache.length + 1, make_plan(params.spec, config).longest
    )


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
            _round(session, prefilled(session))  # compiles; its result is thrown away
            states[name] = prefilled(session)
    for _ in range(rounds):
        for name, session in sessions.items():
            if not bool(np.all(states[name].done)):
                with precision(session):
                    states[name], seconds = _round(session, states[name])
                yield name, seconds


def _round(session, state) -> tuple[Any, dict[str, float]]:
    params, request, config = session.params, session.request, session.config
    seconds: dict[str, float] = defaultdict(float)

    def timed(phase, function, *args):
        started = time.perf_counter()
        result = jax.block_until_ready(function(*args, config=config))
        seconds[phase] += time.perf_counter() - started
        return result

    jax.block_until_ready(state)
    noise = timed("rest", _noise, params, request, state)
    drafted = timed("draft", _draft, params, request, state, noise)
    tree = timed("tree", _grow, params, state, drafted.proposed)
    verified = timed("verify", _verify, params, request, state, tree, noise, drafted.logprob)
    state, committed = timed("rest", _commit, params, request, state, tree, verified)
    if config.method == "ar":
        return state, seconds | {"absorb": 0.0}
    return timed("absorb", _absorb, params, state, committed), seconds
