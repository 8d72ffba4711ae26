"""Start a call: compile its two programs at the same time, and run the prefill."""

from __future__ import annotations

import concurrent.futures
import contextlib
import gc
from collections.abc import Hashable, Iterator
from typing import Any

import jax
import numpy as np

from jaxspec.core.state import DecodeState
from jaxspec.engine.loop import run
from jaxspec.engine.prefill import prefill
from jaxspec.engine.session import Session, prefill_arguments, run_prefill
from jaxspec.engine.shrink_choice import find_key, noting_compilation
from pallas_kernels.device import current_device

# Calls whose rounds were compiled, or are about to be. A wrong entry costs time only: programs that
# are missing are compiled when they are first called.
_begun: set[Hashable] = set()


def start_session(session: Session) -> DecodeState:
    """Run the prefill, and compile the rounds meanwhile if the call is the first of its kind.

    XLA compiles a program mostly on one core, so two programs take hardly longer than one.

    Returns:
      The state after the prefill; see `jaxspec.engine.session.run_prefill`.
    """
    key = find_key(session)
    if key in _begun or not _suits(session):
        return jax.block_until_ready(run_prefill(session))
    _begun.add(key)
    args, static = prefill_arguments(session)
    with pausing_collection():
        state = prefill.trace(*args, **static).out_info
        arrays = session.params, session.request, state, np.int32(0)
        lowered = run.lower(*arrays, config=session.config)
    with concurrent.futures.ThreadPoolExecutor(1) as pool:
        # An error comes again where the program is called.
        pool.submit(_compile, session, lowered)
        return jax.block_until_ready(run_prefill(session))


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


def _compile(session: Session, lowered: Any) -> None:
    with noting_compilation(session):
        lowered.compile()


def _suits(session: Session) -> bool:
    """Whether the call is for this process's CPU alone.

    On a GPU, XLA times kernels while it compiles, which the prefill would disturb.
    """
    alone = session.params.layout is None and jax.process_count() == 1
    return alone and current_device().platform == "cpu"
