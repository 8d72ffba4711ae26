"""`warmup`: compile what calls of given sizes need, before the first of them."""

from __future__ import annotations

import dataclasses
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.call.arguments import check_count, check_flag
from jaxspec.call.hooks import Hooks
from jaxspec.call.run import run_rounds
from jaxspec.call.session import Session, matmul_precision, prepare
from jaxspec.call.shrink import take_sequences
from jaxspec.call.start import start_session
from jaxspec.call.stream import read_news
from jaxspec.core.params import Params, check_params
from jaxspec.core.runtime.compilations import compilations
from jaxspec.core.runtime.jax_settings import under_own_settings
from jaxspec.tuner.tuner import Tuner, tune


class WarmedUp(NamedTuple):
    """What `warmup` did.

    Attributes:
      seconds: wall-clock time.
      programs: that were compiled, or loaded from disk; 0 if all were there.
      capacities: rows of the key-value caches of the calls that are ready.
    """

    seconds: float
    programs: int
    capacities: tuple[int, ...]


@under_own_settings
def warmup(
    params: Params,
    *,
    prompt_tokens: int | Sequence[int],
    batch: int = 1,
    shrink: bool = False,
    tuner: Tuner | None = None,
    **options: Any,
) -> WarmedUp:
    """Compile what `decode` and `stream` need for prompts of these sizes.

    That is prefill, rounds with and without drafting, and all their widths. If the policy of these
    calls probes its costs, it does so here. Calls with chat messages use capacities of their own:
    give `capacity=2048`, then 8192.

    Args:
      params: from `jaxspec.load`.
      prompt_tokens: tokens of the longest prompt, or several such numbers.
      batch: prompts that one call decodes together.
      shrink: also compile the rounds of the smaller batches that these calls go on with.
      tuner: that of the calls.
      options: keyword arguments of `jaxspec.decode`; those that are traced (`temperature` above 0,
        `seed`, `stop`, …) may differ in the calls. `drafter`: one of them (default: the first).

    Raises:
      TypeError, ValueError: as `jaxspec.decode` does.
    """
    check_params(params)
    batch = check_count("batch", batch)
    check_flag("shrink", shrink)
    sizes = [prompt_tokens] if isinstance(prompt_tokens, int) else list(prompt_tokens)
    # Naming the drafter keeps this call out of the trials that choose among several.
    options = options | {"drafter": options.get("drafter") or params.spec.default_drafter}
    began, before = time.perf_counter(), compilations()
    ready = {}
    for size in sizes:
        prompts = [[0] * check_count("prompt_tokens", size)] * batch
        session, hooks = tune(prepare(params, prompts, **options), tuner)
        ready.setdefault(session.capacity, (session, hooks))
    for session, hooks in ready.values():
        _run_empty(session, hooks, shrink)
    return WarmedUp(time.perf_counter() - began, compilations() - before, tuple(ready))


def _run_empty(session: Session, hooks: Hooks, shrink: bool) -> None:
    """Run each program of a session once, on prompts of one token and for no rounds."""
    session = dataclasses.replace(session, lengths=np.ones_like(session.lengths))
    streams = len(session.lengths) == 1
    with matmul_precision(session):
        state = start_session(session, hooks).state
        session = hooks.after_prefill(session, state)
        state = run_rounds(session, state, 0, hooks)
        while shrink and len(session.lengths) > 1:
            half = np.arange(len(session.lengths) // 2)
            session, state = take_sequences(session, state, half)
            session = hooks.after_shrinking(session, state)
            state = run_rounds(session, state, 0, hooks)
    if streams:
        read_news(state, 0)
    jax.block_until_ready(state)
