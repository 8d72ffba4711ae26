"""The phases of a round as programs of their own, timed one by one.

This is the only place where benchmarks compile single phases: `time_phases` splits a round for
`jaxspec bench`, `jaxspec.bench.peers.overhead` compares a round with its forwards, and
`jaxspec.bench.latency.pieces` repeats the same forwards inside device loops.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.measure.methods import Method
from jaxspec.call.options import group_options
from jaxspec.call.session import Session, matmul_precision, prepare, run_prefill
from jaxspec.core.params import Params
from jaxspec.core.runtime.clock import time_call
from jaxspec.core.state import DecodeState, Tree
from jaxspec.io.text.prompt_files import ALL_DOMAINS, LabelledPrompt
from jaxspec.round.commit import absorb, commit
from jaxspec.round.context import Round, Verified, compile_phase
from jaxspec.round.draft import draft
from jaxspec.round.grow import find_drawn, grow
from jaxspec.round.proposals import Drafted, propose
from jaxspec.round.verify import TargetPass, run_target, verify
from jaxspec.tuner.tuner import process_tuner

# Phases of a round as reports name them, in order; `rest` is sampling noise and commit.
PHASES = ("draft", "tree", "verify", "absorb", "rest")
# Phases that autoregressive decoding does not have: the cost of drafting.
DRAFTING = ("draft", "tree", "absorb")
# The same round in finer pieces; each takes the result of the one before. `rank` is the part of
# `draft` after the drafter's forward, and `commit` is the part of `rest` without noise.
PIECES = ("draft", "rank", "tree", "verify", "commit", "absorb")


def draw_noise(round: Round, state: DecodeState) -> jax.Array | None:
    """Draw the round's sampling noise; None for greedy decoding."""
    return round.noise(state.cache.length + 1, round.plan.longest)


def forward_target(round: Round, state: DecodeState, tree: Tree) -> tuple[TargetPass, jax.Array]:
    """Run the target over the rows of a tree; return its pass and its logits [B, N, V]."""
    passed = run_target(round, state, tree)
    return passed, round.target_head.unembed(passed.hidden)


def forward_drafter(round: Round, state: DecodeState) -> jax.Array:
    """Run a drafter that proposes all depths at once; return its logits [B, depth, V]."""
    proposal, _ = propose(round, state)
    return proposal.logits[:, 0, : round.growth.longest]


def _verify(
    round: Round, state: DecodeState, tree: Tree, noise: jax.Array | None, drafted: Drafted
) -> Verified:
    return verify(round, state, tree, noise, find_drawn(round, drafted))


def _choose_tokens(round: Round, state: DecodeState, tree: Tree) -> tuple[jax.Array, ...]:
    """Run `forward_target`, but return the argmax: the loop never writes logits to memory."""
    passed, logits = forward_target(round, state, tree)
    return jnp.argmax(logits, -1), passed.features, passed.k, passed.v


run_noise = compile_phase(draw_noise)
run_draft = compile_phase(draft)
run_grow = compile_phase(grow)
run_verify = compile_phase(_verify)
run_commit = compile_phase(commit, donate_state=True)
run_absorb = compile_phase(absorb, donate_state=True)
run_target_forward = compile_phase(_choose_tokens)
run_drafter_forward = compile_phase(forward_drafter)


def time_phases(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    methods: Sequence[Method],
    *,
    options: dict[str, Any] | None = None,
    rounds: int = 16,
) -> dict[tuple[str, str], dict[str, float]]:
    """Time each phase of a round: medians over up to `rounds` rounds of one prompt per domain.

    - `draft`: the drafter's forwards and the ranking of its candidates;
    - `tree`: assembly of the tree (part of `draft` if the tree grows with its drafter);
    - `verify`: the target's forward and acceptance;
    - `absorb`: the drafter reads new features, a forward too for drafters such as EAGLE-3;
    - `rest`: the sampling noise and the cache updates.

    Each phase is its own program here: dispatch adds a little to each, and XLA cannot overlap or
    fuse across phases. Methods take turns round by round, so that drift of the machine affects all
    of them alike.

    Args:
      params: from `jaxspec.load`.
      options: keyword arguments of `jaxspec.decode` for all methods that do not set them.
      rounds: most rounds of a prompt; at least 1.

    Returns:
      {(method, domain): {phase: ms}}, with domain `all` over every prompt used.
    """
    first = {prompt.domain: prompt for prompt in reversed(prompts)}
    samples: dict[tuple[str, str], list[dict[str, float]]] = defaultdict(list)
    for domain, prompt in first.items():
        sessions = prepare_sessions(params, prompt, methods, options)
        for name, seconds in _time_rounds(sessions, rounds):
            samples[name, domain].append(seconds)
            samples[name, ALL_DOMAINS].append(seconds)
    return {
        key: {phase: float(np.median([1e3 * s[phase] for s in some])) for phase in PHASES}
        for key, some in samples.items()
    }


def prepare_sessions(
    params: Params,
    prompt: LabelledPrompt,
    methods: Sequence[Method],
    options: dict[str, Any] | None,
) -> dict[str, Session]:
    """Prepare a prompt's decode by each method; return {name: session}."""
    given = {method.name: {**(options or {}), **method.options} for method in methods}
    return {
        name: process_tuner().prepare(prepare(params, prompt.content, **group_options(**own)))
        for name, own in given.items()
    }


def _time_rounds(
    sessions: dict[str, Session], rounds: int
) -> Iterator[tuple[str, dict[str, float]]]:
    """Yield (method, seconds by phase) of up to `rounds` rounds of each session, in turn."""
    states = {}
    for name, session in sessions.items():
        with matmul_precision(session):
            time_round(session, run_prefill(session))  # compiles; the result is discarded
            states[name] = run_prefill(session)
    for _ in range(rounds):
        for name, session in sessions.items():
            if not bool(np.all(states[name].done)):
                with matmul_precision(session):
                    states[name], seconds = time_round(session, states[name])
                yield name, seconds


def time_round(session: Session, state: DecodeState) -> tuple[DecodeState, dict[str, float]]:
    """Run a round by phases; return the next state and {phase: seconds}. `state` is donated."""
    seconds: dict[str, float] = dict.fromkeys(PHASES, 0.0)

    def timed(phase: str, program: Any, *args: Any) -> Any:
        result, taken = time_call(
            program, session.params, session.request, *args, config=session.config
        )
        seconds[phase] += taken
        return result

    noise = timed("rest", run_noise, state)
    drafted = timed("draft", run_draft, state, noise)
    tree = timed("tree", run_grow, state, drafted)
    verified = timed("verify", run_verify, state, tree, noise, drafted)
    state, committed = timed("rest", run_commit, state, tree, verified)
    if session.config.drafter != "ar":
        state = timed("absorb", run_absorb, state, committed)
    return state, seconds
