"""Shrink a batch: continue with half of it when half of its sequences have finished.

A round costs about as much for a finished sequence as for another one. The sequences that go on are
gathered into a state of half the size, and so on. Noise is keyed by the sequence and its positions,
so that tokens do not change. Every size has its own program, hence a batch shrinks for callers who
ask, and else once that pays, if a tuner says so.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.hooks import Hooks
from jaxspec.call.session import Session
from jaxspec.core.state import DecodeState
from jaxspec.round.plan import make_plan
from jaxspec.targets.sharding.state import place_state

Item = TypeVar("Item")
# The axis of arrays that all sequences share.
SHARED = -1


class ShrinkingBatch:
    """The sequences of a call that still decode, and what is known of the others.

    Attributes:
      session: of the whole call.
      places: int [b], which of the call's B sequences the present state holds.
    """

    def __init__(self, session: Session, hooks: Hooks, asked: bool = True):
        """Begin with all sequences of a call.

        Args:
          hooks: who tunes the call.
          asked: whether the caller wants the batch to shrink, or only if that pays.
        """
        self.session, self.places = session, np.arange(len(session.lengths))
        self._hooks, self._asked, self._looked = hooks, asked, 0.0
        self._whole: DecodeState | None = None

    @property
    def shrunk(self) -> bool:
        """Whether the present state holds a part of the sequences."""
        return len(self.places) < len(self.session.lengths)

    def select(self, items: Sequence[Item]) -> list[Item]:
        """Return the items, one per sequence of the call, of the sequences in the present state."""
        return [items[place] for place in self.places.tolist()]

    def shrink(self, session: Session, state: DecodeState) -> tuple[Session, DecodeState]:
        """Halve the batch as long as at most half of its sequences are live, if it should shrink.

        Args:
          session: of the sequences in `state`.
          state: between two rounds; if the batch shrinks, nobody may need it any more.

        Returns:
          The session and the state of the remaining sequences.
        """
        done, size = np.asarray(state.done), len(self.places)
        live = int((~done).sum())
        while 0 < live <= size // 2:
            size //= 2
        if size == len(self.places) or not self._wants(session, size):
            return session, state
        self._keep(state)
        while live <= len(self.places) // 2:
            # The live ones first, and of the others as many as fit.
            index = np.sort(np.argsort(done, kind="stable")[: len(self.places) // 2])
            session, state = take_sequences(session, state, index)
            self.places, done = self.places[index], done[index]
        return self._hooks.after_shrinking(session, state), state

    def _wants(self, session: Session, size: int) -> bool:
        """Decide whether to go on with `size` sequences, for which the host has just waited."""
        now = time.perf_counter()
        seconds, self._looked = (now - self._looked if self._looked else 0.0), now
        return self._asked or self._hooks.shrinking_pays(session, size, seconds)

    def join(self, state: DecodeState) -> DecodeState:
        """Return the state of all sequences, on the host and without caches."""
        self._keep(state)
        assert self._whole is not None, "it was kept just now"
        return self._whole

    def _keep(self, state: DecodeState) -> None:
        """Keep what outputs are made of."""
        part = jax.device_get(_without_caches(state))
        if self._whole is None:
            self._whole = part
            return
        write = functools.partial(_write, self.places)
        axes = _without_caches(find_axes(self.session, state))
        self._whole = jax.tree.map(write, axes, self._whole, part)


def take_sequences(
    session: Session, state: DecodeState, index: np.ndarray
) -> tuple[Session, DecodeState]:
    """Return the session and the state of the sequences `index` int [b] of a batch.

    The caches are copied, so for a moment both states take memory.
    """
    axes = tuple(jax.tree.leaves(find_axes(session, state)))
    request, by_sequence = session.request, ("limit", "sequence", "stop_from")
    given = {name: getattr(request, name) for name in by_sequence}
    request = request.replace(**{name: x[index] for name, x in given.items() if x is not None})
    tokens, lengths = session.tokens[index], session.lengths[index]
    taken = _take(state, index.astype(np.int32), axes=axes)
    return dataclasses.replace(session, request=request, tokens=tokens, lengths=lengths), taken


@functools.partial(jax.jit, static_argnames="axes")
def _take(state: DecodeState, index: jax.Array, *, axes: tuple[int, ...]) -> DecodeState:
    leaves, structure = jax.tree.flatten(state)
    taken = [
        leaf if axis == SHARED else jnp.take(leaf, index, axis, mode="clip")
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    return place_state(jax.tree.unflatten(structure, taken))


def find_axes(session: Session, state: DecodeState) -> DecodeState:
    """Return the axis of the sequences in each array of a state; `SHARED` where there is none."""
    plan = make_plan(session.params.spec, session.config)
    axes = jax.tree.map(lambda leaf: 0, state)
    cache = jax.tree.map(lambda leaf: 1, state.cache).replace(length=0)
    axes = axes.replace(cache=cache)
    drafter, policy = plan.drafter, plan.policy
    if drafter is not None:
        size = session.capacity, session.params.dtype
        axes = axes.replace(draft=_compare(lambda batch: drafter.init(batch, *size)))
    if policy is not None:
        axes = axes.replace(control=_compare(lambda batch: policy.init(plan.shape(batch))))
    return axes


def _compare(make: Callable[[int], Any]) -> Any:
    """Find the axes in which what `make` makes for one and for two sequences differs."""
    one, two = (jax.eval_shape(functools.partial(make, batch)) for batch in (1, 2))
    return jax.tree.map(_find_axis, one, two)


def _find_axis(one: jax.ShapeDtypeStruct, two: jax.ShapeDtypeStruct) -> int:
    different = [axis for axis, size in enumerate(one.shape) if size != two.shape[axis]]
    (axis,) = different or (SHARED,)
    return axis


def _write(places: np.ndarray, axis: int, whole: np.ndarray, part: np.ndarray) -> np.ndarray:
    """Write the sequences of a part into the array of all."""
    if axis == SHARED:
        return part
    whole = whole.copy()
    whole[(slice(None),) * axis + (places,)] = part
    return whole


def _without_caches(state: DecodeState) -> DecodeState:
    return state.replace(cache=None, draft=None, counts=None)
