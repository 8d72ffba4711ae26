"""`decode` and `stream`: from prompts to sequences around the device loop."""

from __future__ import annotations

import time
from collections.abc import Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders import Builder
from jaxspec.core.params import Params
from jaxspec.core.state import DecodeState
from jaxspec.engine.arguments import check_flag, check_prompt
from jaxspec.engine.compilations import compilations
from jaxspec.engine.loop import run
from jaxspec.engine.output import Output
from jaxspec.engine.results import (
    Traces,
    find_stopped,
    make_outputs,
    read_sequence,
    record_round,
)
from jaxspec.engine.session import Session, Stop, precision, prefilled, prepare
from jaxspec.engine.stops import safe_length
from jaxspec.engine.token_ids import Prompt, Prompts, is_batch
from jaxspec.policies.protocol import Policy

# Rounds between two looks at the text, when there are stop strings to look for.
ROUNDS_PER_LOOK = 8


def decode(
    params: Params,
    prompt: Prompt | Prompts,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    stop: Stop = (),
    ignore_eos: bool = False,
    method: str | None = None,
    builder: str | Builder | None = None,
    budget: int = 32,
    block_size: int | None = None,
    depth: int | None = None,
    acceptance: str = "match",
    coupled: bool = True,
    score_temperature: float | None = None,
    policy: Policy | None = None,
    trace: bool = False,
) -> Output | list[Output]:
    """Generate text; the drafter changes how fast, never what.

    Args:
      params: from `jaxspec.load`.
      prompt: str, token ids, chat messages ([{"role", "content"}, …]), or a list of these (then the
        result is a list).
      max_new_tokens: tokens to generate at most (256).
      temperature: 0.0 is greedy. top_k, top_p, min_p: restrict sampling, in this order (None).
      seed: with the prompt, the only source of randomness (0). Equal prompts in one list are
        independent samples.
      stop: strings and/or token ids that end the text, beside the model's own EOS set. ignore_eos:
        drop that set.
      method: `ar` for plain autoregressive decoding, or the name of a loaded drafter (None: the
        first one).
      builder: how candidates become a tree: a value of `jaxspec.builders`, such as
        `builders.expand(width=3, fanout="top2gap")`, or its spelling, `"expand/w3/fanout=top2gap"`.
        None: what suits the drafter.
      budget: rows verified a round, the root included (32; `builders.static(paths)` verifies its
        paths). DDTree's M is M + 1 here.
      block_size: slots of a block drafter's block, the anchor included (None: as trained).
      depth: longest drafted path of drafters that work in steps (None: the drafter's own).
      acceptance: `match`: draft-invariant, the text is the autoregressive one with the same seed;
        `sequential` and `rejection` keep the distribution only (temperature > 0).
      coupled: at temperature > 0, rank drafts under the target's own noise (True; `match` only).
      score_temperature: divisor of the draft logits when paths are scored; below 1 trees grow
        deeper, above 1 wider (None: the drafter's own).
      policy: chooses the block size of a request, whether a round drafts, how many steps it drafts
        and how many of the tree's rows are verified, see `jaxspec.policies` (None: as much as the
        caps here allow). What it learned is in `Output.policy`, for the next call.
      trace: record every round in `Output.rounds` (one host round trip a round).

    Returns:
      `Output`, or a list of them in the prompts' order.

    Raises:
      TypeError: a prompt or an option of the wrong type.
      ValueError: an option out of range, an empty or too long prompt, an unknown method or builder.
    """
    check_flag("trace", trace)
    session = prepare(
        params,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        method=method,
        builder=builder,
        budget=budget,
        block_size=block_size,
        depth=depth,
        acceptance=acceptance,
        coupled=coupled,
        score_temperature=score_temperature,
        policy=policy,
    )
    with precision(session):
        started = time.perf_counter()
        state = jax.block_until_ready(prefilled(session))
        decoding, compiled = time.perf_counter(), compilations()
        state, traces = _finish(session, state, trace)
        seconds = (decoding - started, time.perf_counter() - decoding)
    rounds_only = not (trace or session.stop_strings) and compilations() == compiled
    outputs = make_outputs(session, state, seconds, traces, rounds_only)
    return outputs if is_batch(prompt) else outputs[0]


def stream(
    params: Params,
    prompt: Prompt,
    *,
    max_new_tokens: int = 256,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    seed: int = 0,
    stop: Stop = (),
    ignore_eos: bool = False,
    method: str | None = None,
    builder: str | Builder | None = None,
    budget: int = 32,
    block_size: int | None = None,
    depth: int | None = None,
    acceptance: str = "match",
    coupled: bool = True,
    score_temperature: float | None = None,
    policy: Policy | None = None,
) -> Iterator[str | list[int]]:
    """Yield the text of `decode`, with the same options, piece by piece, a round at a time.

    Pieces are text (lists of token ids if the model has no tokenizer) and join to exactly
    `Output.text` (`.tokens`); characters that a stop string may still take back are held. The
    generator's return value is the `Output`.

    Raises:
      ValueError: as `decode`; or `prompt` is a list of prompts.
    """
    check_prompt(prompt)
    if is_batch(prompt):
        raise ValueError("stream takes one prompt: call decode for a list of them")
    session = prepare(
        params,
        prompt,
        max_new_tokens=max_new_tokens,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        seed=seed,
        stop=stop,
        ignore_eos=ignore_eos,
        method=method,
        builder=builder,
        budget=budget,
        block_size=block_size,
        depth=depth,
        acceptance=acceptance,
        coupled=coupled,
        score_temperature=score_temperature,
        policy=policy,
    )
    return _stream(session)


def _stream(session: Session) -> Iterator[str | list[int]]:
    started = time.perf_counter()
    with precision(session):
        state = jax.block_until_ready(prefilled(session))
    decoding = time.perf_counter()
    shown = 0
    while True:
        tokens, text, _ = read_sequence(session, state, 0)
        done = bool(np.asarray(state.done).all()) or find_stopped(session, state)[0]
        whole = tokens if text is None else text
        hold = not done and text is not None
        ready = safe_length(text, session.stop_strings) if hold else len(whole)
        if ready > shown:
            yield whole[shown:ready]
            shown = ready
        if done:
            break
        with precision(session):
            state = _run(session, state, 1)
    seconds = (decoding - started, time.perf_counter() - decoding)
    return make_outputs(session, state, seconds)[0]


def _finish(session: Session, state: DecodeState, trace: bool) -> tuple[DecodeState, Traces | None]:
    """Run rounds until every sequence is done: in one call, unless the host looks in between."""
    looks = ROUNDS_PER_LOOK if session.stop_strings else session.max_tokens
    traces: Traces | None = [[] for _ in session.lengths] if trace else None
    while True:
        if session.stop_strings:
            stopped = jnp.asarray(find_stopped(session, state))
            state = state.replace(done=state.done | stopped)
        if bool(np.asarray(state.done).all()):
            return jax.block_until_ready(state), traces
        state = _run(session, state, looks if traces is None else 1)
        if traces is not None:
            record_round(state, traces)


def _run(session: Session, state: DecodeState, rounds: int) -> DecodeState:
    return run(session.params, session.request, state, jnp.int32(rounds), config=session.config)
