"""Buckets: sizes that a part of a round is compiled for, of which a round runs the smallest that does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import jax
import jax.numpy as jnp

Result = TypeVar("Result")


def powers_of_two(largest: int) -> tuple[int, ...]:
    """List the powers of two up to `largest`, from 1: buckets where nothing else is known."""
    return tuple(1 << i for i in range(largest.bit_length()))


def run_smallest(
    needed: jax.Array, sizes: Sequence[int], branches: Sequence[Callable[[], Result]]
) -> Result:
    """Run the branch of the smallest of `sizes` that is at least `needed`.

    Inside a loop on a GPU this stays in the round's command buffer.

    Args:
      needed: int32 [], at most the last size.
      sizes: ascending.
      branches: one per size; their results have the same shapes.
    """
    if len(branches) == 1:
        return branches[0]()
    return jax.lax.switch(sum((needed > size).astype(jnp.int32) for size in sizes[:-1]), branches)
