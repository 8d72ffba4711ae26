"""Decide when a batch shrinks without being asked: once its smaller programs have paid.

A smaller batch runs programs of its own, which take seconds to compile, and nobody knows how long its
texts will be. So a process adds up what finished sequences cost it, and compiles for a smaller batch
when that reaches what compiling took for the whole batch. If rounds cost as much for each sequence,
it loses for no size more than twice what the best choice in hindsight does (Karlin, Manasse, Rudolph
and Sleator 1988). Batches of a size that is compiled shrink at once.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Hashable, Iterator

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.session import Session
from jaxspec.core.runtime.compilations import compilations, saved_seconds

# What compiling took of the programs of rounds that this process has, and the seconds that finished
# sequences have cost where there is none; by `find_key`.
_prices: dict[Hashable, float] = {}
_lost: dict[Hashable, float] = {}


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


def may_shrink(session: Session) -> bool:
    """Whether calls like this one shrink without being asked.

    A short dtype rounds differently in another batch, and tokens must not depend on the clock. Nor
    may processes decide by clocks of their own.
    """
    return session.params.dtype == jnp.float32 and jax.process_count() == 1


@contextlib.contextmanager
def noting_compilation(session: Session) -> Iterator[None]:
    """Note what compiling the rounds of a session takes, if the body does it, or would take.

    A program from disk costs what it cost to compile: that of a smaller batch may not be there.
    """
    before, saved, began = compilations(), saved_seconds(), time.perf_counter()
    yield
    if compilations() != before:
        _prices[find_key(session)] = time.perf_counter() - began + saved_seconds() - saved


def shrinking_pays(session: Session, batch: int, seconds: float) -> bool:
    """Decide whether a session goes on with a smaller batch.

    Args:
      session: of the present batch.
      batch: number of sequences of the smaller one.
      seconds: that passed since the last look, if the smaller batch would have done then. Rounds are
        taken to cost as much for each sequence.
    """
    key = find_key(session, batch)
    if key in _prices:
        return True
    _lost[key] = _lost.get(key, 0.0) + seconds * (1 - batch / len(session.lengths))
    price = _prices.get(find_key(session))
    return price is not None and _lost[key] >= price
