"""Time rounds of the decode loop, for `calibrate`, `calibrate_steps` and training.

All kinds of rounds and all contexts take turns within every repeat, so that other load on the
machine slows all of them alike.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.options import group_options
from jaxspec.call.session import Session, matmul_precision, prepare, run_prefill
from jaxspec.core.params import Params
from jaxspec.core.runtime.clock import time_call
from jaxspec.round.loop import run
from jaxspec.round.plan import Plan, make_plan
from jaxspec.tuner.tuner import process_tuner

# Rounds of a sample: enough to make the overhead of the call negligible.
ROUNDS = 48


class Case(NamedTuple):
    """A kind of round.

    Attributes:
      options: keyword arguments of `jaxspec.decode`; cases that share the object share prefill and
        compilation.
      controls: controls of the policy; None: those of `options["policy"]`.
    """

    options: Mapping[str, Any]
    controls: Any = None


def plan_rounds(params: Params, options: Mapping[str, Any]) -> Plan:
    """Plan the rounds of a decode with these options."""
    # One new token: the sizes of rounds do not depend on the answer's length, which may exceed the
    # target's positions by default.
    config = prepare(params, [0], **group_options(**{**options, "max_new_tokens": 1})).config
    return make_plan(params.spec, config)


def sample_tokens(params: Params, options: Mapping[str, Any]) -> int:
    """Return the number of tokens that a sample needs room for: those of `ROUNDS` rounds that
    accept everything, but at most half of the target's positions.
    """
    longest = plan_rounds(params, options).longest
    return max(min((ROUNDS + 1) * longest, params.spec.target.max_positions // 2), 1)


def default_contexts(max_positions: int, tokens: int) -> tuple[int, ...]:
    """Return contexts to measure at: powers of four from 64 on that leave room for `tokens`."""
    room = max_positions - tokens
    return tuple(4**i for i in range(3, 9) if 4**i <= room) or (max(room // 2, 1),)


def time_rounds(
    params: Params,
    cases: Sequence[Case],
    contexts: Sequence[int] | None = None,
    *,
    repeats: int = 9,
    batch: int = 1,
) -> tuple[tuple[int, ...], np.ndarray]:
    """Measure the median seconds of rounds of every case at every context.

    Args:
      contexts: numbers of cached tokens (None: `default_contexts`).
      repeats: samples of each time; the order of cases alternates between repeats.
      batch: number of sequences decoded together.

    Returns:
      (contexts, seconds float64 [contexts, cases]).

    Raises:
      ValueError: a context leaves the target no position, or as `jaxspec.decode`.
    """
    limit = params.spec.target.max_positions
    tokens = max(sample_tokens(params, case.options) for case in cases)
    contexts = tuple(contexts or default_contexts(limit, tokens))
    if max(contexts) >= limit:
        raise ValueError(
            f"contexts reach {max(contexts)} tokens and the model has {limit} positions: give "
            "shorter ones"
        )
    rng, timed = np.random.default_rng(0), []
    for context in contexts:
        prompts = rng.integers(0, params.spec.target.vocab_size, (batch, context)).tolist()
        room = {"max_new_tokens": min(tokens, limit - context), "ignore_eos": True}
        sessions = {}
        for case in cases:
            session = prepare(params, prompts, **group_options(**{**case.options, **room}))
            sessions[id(case.options)] = process_tuner().prepare(session)
        timed += [(sessions[id(case.options)], case.controls) for case in cases]
    return contexts, _median_seconds(timed, repeats).reshape(len(contexts), len(cases))


def _median_seconds(timed: Sequence[tuple[Session, Any]], repeats: int) -> np.ndarray:
    """Measure the median seconds of a round of each (session, controls): float64 [len(timed)].

    Each repeat's overall speed is divided out before taking the median over repeats.
    """
    samples = np.zeros((repeats, len(timed)))
    with matmul_precision(timed[0][0]):
        starts = {id(session): jax.block_until_ready(run_prefill(session)) for session, _ in timed}
        for repeat in range(-1, repeats):  # the first turn compiles
            for i in range(len(timed))[:: -1 if repeat % 2 else 1]:
                session, controls = timed[i]
                seconds = _seconds(session, controls, starts[id(session)])
                if repeat >= 0:
                    samples[repeat, i] = seconds
    drift = np.exp(np.log(samples).mean(axis=1, keepdims=True))
    return np.median(samples / drift, axis=0) * np.median(drift)


def _seconds(session: Session, controls: Any, start: Any) -> float:
    """Return the mean seconds of `ROUNDS` rounds from the state `start`, which is not changed."""
    request = session.request
    if controls is not None:
        request = request.replace(controls=controls)
    state = jax.tree.map(jnp.copy, start)
    state, seconds = time_call(
        run, session.params, request, state, jnp.int32(ROUNDS), config=session.config
    )
    return seconds / max(int(jnp.max(state.rounds)), 1)
