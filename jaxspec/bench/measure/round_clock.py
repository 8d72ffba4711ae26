"""Time rounds of the decode loop: what `calibrate`, `calibrate_steps` and training measure with.

All kinds of rounds and all contexts take turns within every repeat, so that what the machine does
meanwhile slows all of them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.measure.clock import time_call
from jaxspec.core.params import Params
from jaxspec.engine.loop import run
from jaxspec.engine.plan import Plan, make_plan
from jaxspec.engine.session import Session, matmul_precision, prepare, run_prefill

# Rounds of a sample: enough that the time of the call around them does not matter.
ROUNDS = 48


class Case(NamedTuple):
    """A kind of round.

    Attributes:
      options: of `jaxspec.decode`; cases that share the object share prefill and compilation.
      controls: what the policy reads; None: the controls of `options["policy"]`.
    """

    options: Mapping[str, Any]
    controls: Any = None


def plan_rounds(params: Params, options: Mapping[str, Any]) -> Plan:
    """What the rounds of a decode with these options are made of."""
    # One new token: the sizes of rounds do not depend on the answer's length, which may exceed the
    # target's positions by default.
    config = prepare(params, [0], **{**options, "max_new_tokens": 1}).config
    return make_plan(params.spec, config)


def sample_tokens(params: Params, options: Mapping[str, Any]) -> int:
    """Tokens to leave room for in a sample: those of `ROUNDS` rounds that accept everything, but at
    most half of the target's positions.
    """
    longest = plan_rounds(params, options).longest
    return max(min((ROUNDS + 1) * longest, params.spec.target.max_positions // 2), 1)


def default_contexts(max_positions: int, tokens: int) -> tuple[int, ...]:
    """Context lengths to measure at: powers of four from 64 up to what leaves room for `tokens`."""
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
    """Median seconds of rounds of every case at every context.

    Args:
      contexts: cached tokens (None: `default_contexts`).
      repeats: samples of each time; the order of cases alternates between repeats.
      batch: sequences decoded together.

    Returns:
      (contexts, float64 [contexts, cases]).

    Raises:
      ValueError: a context that leaves the target no position, or as `jaxspec.decode`.
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
        sessions = {
            id(case.options): prepare(params, prompts, **{**case.options, **room}) for case in cases
        }
        timed += [(sessions[id(case.options)], case.controls) for case in cases]
    return contexts, _median_seconds(timed, repeats).reshape(len(contexts), len(cases))


def _median_seconds(timed: Sequence[tuple[Session, Any]], repeats: int) -> np.ndarray:
    """Seconds of a round of each (session, controls): float64 [len(timed)].

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
    """Seconds of one of `ROUNDS` rounds from the state `start`, which stays as it is."""
    request = session.request
    if controls is not None:
        request = request.replace(controls=controls)
    state = jax.tree.map(jnp.copy, start)
    state, seconds = time_call(
        run, session.params, request, state, jnp.int32(ROUNDS), config=session.config
    )
    return seconds / max(int(jnp.max(state.rounds)), 1)
