"""Start a call: compile its two programs in the background, and run the prefill."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Callable, Hashable, Iterator
from concurrent.futures import Future, wait
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.call.hooks import UNTUNED, Hooks
from jaxspec.call.prefill import prefill
from jaxspec.call.session import Session, prefill_arguments, run_prefill
from jaxspec.core.state import DecodeState
from jaxspec.round.loop import run
from pallas_kernels.device import current_device


class Started(NamedTuple):
    """A call whose prefill ran.

    Attributes:
      state: after the prefill; see `jaxspec.call.session.run_prefill`.
      prefill_seconds: wall-clock time of the prefill. It includes compiling only where several
        processes run it. On a CPU, rounds may have compiled meanwhile, which slows it down.
    """

    state: DecodeState
    prefill_seconds: float


def find_key(session: Session, batch: int | None = None) -> Hashable:
    """Return what the program of a session's rounds depends on, the arrays' shapes aside.

    Args:
      batch: number of sequences, if it is another one.
    """
    request, params = session.request, session.params
    structure = jax.tree.structure((params.target, params.drafters.get(session.config.drafter)))
    count = len(session.lengths) if batch is None else batch
    sizes = count, session.capacity, session.max_tokens, np.shape(request.stop)
    sizes = *sizes, request.stop_from is None
    return params.spec, params.dtype, session.config, structure, sizes


def start_session(session: Session, hooks: Hooks = UNTUNED) -> Started:
    """Run the prefill, and compile the rounds meanwhile if the call is the first of its kind.

    Another call of that kind, after an interrupt or in another thread, waits for the same
    compilations. XLA compiles a program mostly on one core, so two programs take hardly longer than
    one. Other threads compile them, because a thread that compiles cannot be interrupted.
    """
    if jax.process_count() > 1:  # all must compile in the same order
        began = time.perf_counter()
        state = jax.block_until_ready(run_prefill(session))
        return Started(state, time.perf_counter() - began)
    key, ahead = find_key(session), _suits(session)
    if ahead:  # first, because the rounds compile for longer
        _begin_rounds(key, session, hooks)
    # An error comes again where the program is called.
    wait([prefill.begin(key, lambda: _lower_prefill(session))])
    began = time.perf_counter()
    state = _wait_until_ready(run_prefill(session))
    seconds = time.perf_counter() - began
    wait([_begin_rounds(key, session, hooks, None if ahead else state)])
    return Started(state, seconds)


def _lower_prefill(session: Session) -> Callable[[], None]:
    """Lower the prefill, and return what compiles it."""
    args, static = prefill_arguments(session)
    with pausing_collection():
        lowered = prefill.lower(*args, **static)
    return lambda: _compile(lowered)


def _begin_rounds(
    key: Hashable, session: Session, hooks: Hooks, state: DecodeState | None = None
) -> Future[None]:
    """Begin to compile the rounds.

    Args:
      state: after the prefill; None before it, if the devices do not share it.
    """

    def lower() -> Callable[[], None]:
        args, static = prefill_arguments(session)
        with pausing_collection():
            after = prefill.trace(*args, **static).out_info if state is None else state
            arrays = session.params, session.request, after, np.int32(0)
            lowered = run.lower(*arrays, config=session.config)

        def compile_rounds() -> None:
            with hooks.timing_compilation(session):
                _compile(lowered)

        return compile_rounds

    return run.begin(key, lower)


def _wait_until_ready(state: DecodeState) -> DecodeState:
    """Wait as `jax.block_until_ready` does, but so that Ctrl-C ends the wait: prompts may be long."""
    first: Any = state.tokens  # all arrays of a program's result are ready at the same time
    began = time.monotonic()
    while not first.is_ready():
        # A short part of what has passed, so that hardly any time is lost.
        time.sleep(min(5e-5 + 0.02 * (time.monotonic() - began), 0.1))
    return jax.block_until_ready(state)  # raises what the program raised


@contextlib.contextmanager
def pausing_collection() -> Iterator[None]:
    """Pause Python's collection of cyclic garbage in the body.

    Tracing makes many objects that stay. The collector looks at all of them, and at a tokenizer's,
    again and again, which takes a third of the time of tracing.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def _compile(lowered: jax.stages.Lowered) -> None:
    # Where the program is called, JAX finds what the same lowering was compiled to.
    lowered.compile()


def _suits(session: Session) -> bool:
    """Whether the rounds may be compiled during the prefill: for one CPU.

    On a GPU, XLA times kernels while it compiles, which the prefill would disturb.
    """
    return session.params.layout is None and current_device().platform == "cpu"
