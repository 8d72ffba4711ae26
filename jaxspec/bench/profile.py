"""Where a round's time goes: the phases of the loop compiled and timed one by one."""

from __future__ import annotations

import functools
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from jaxspec import api, loop
from jaxspec.bench.methods import Method
from jaxspec.bench.prompts import Prompt
from jaxspec.bench.report import ALL, PHASES

_static = {"static_argnames": ("config",)}
_draft = jax.jit(loop.draft, **_static)
_grow = jax.jit(loop.grow, **_static)
_verify = jax.jit(loop.verify, **_static)
_commit = jax.jit(loop.commit, donate_argnames=("state",), **_static)


@functools.partial(jax.jit, **_static)
def _noise(params, request, state, config):
    return loop._noise(params, request, config, state.cache.length + 1, loop.make_plan(params.spec, config).longest)


def profile(
    params, prompts: Sequence[Prompt], methods: Sequence[Method], *, options: dict[str, Any] | None = None, rounds: int = 16
) -> dict[tuple[str, str], dict[str, float]]:
    """Milliseconds that each phase of a round takes, medians over up to `rounds` rounds of one prompt per domain.

    `draft` is the drafter's forward and the ranking of its candidates, `tree` their assembly, `verify` the target's forward
    and acceptance, `rest` the sampling noise, the cache updates and the drafter's intake of new features. Phases are separate
    programs here: dispatch adds a little to each, and what XLA overlaps or fuses across phases in the loop is not seen.

    Returns:
      {(method, domain): {phase: ms}}, with domain `all` over every prompt used.
    """
    first = {prompt.domain: prompt for prompt in reversed(prompts)}
    table = {}
    for method in methods:
        pooled = []
        for domain, prompt in first.items():
            samples = _sample(params, prompt, {**(options or {}), **method.options}, rounds)
            table[method.name, domain] = _medians(samples)
            pooled += samples
        table[method.name, ALL] = _medians(pooled)
    return table


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    return {phase: float(np.median([1e3 * s[phase] for s in samples])) for phase in PHASES} if samples else {}


def _sample(params, prompt: Prompt, options: dict[str, Any], rounds: int) -> list[dict[str, float]]:
    """Seconds per phase of the rounds after a prompt."""
    session = api._prepare(params, prompt.content, **options)
    with api._precision(session):
        state = api._prefill(session)
        if bool(np.all(state.done)):
            return []
        _round(session, state)  # compiles; its state is thrown away
        state, samples = api._prefill(session), []
        while len(samples) < rounds and not bool(np.all(state.done)):
            state, seconds = _round(session, state)
            samples.append(seconds)
    return samples


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
    candidates, logprob = timed("draft", _draft, params, request, state, noise)
    tree = timed("tree", _grow, params, state, candidates)
    verified = timed("verify", _verify, params, request, state, tree, noise, logprob)
    return timed("rest", _commit, params, request, state, tree, verified), seconds
