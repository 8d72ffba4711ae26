"""Grow: turn what the drafter proposed into the round's tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.builders.trees.rows import order_nodes
from jaxspec.core.state import DecodeState, Tree
from jaxspec.core.tree import root_only
from jaxspec.round.context import Drawn, Round
from jaxspec.round.proposals import Drafted


def grow(round: Round, state: DecodeState, drafted: Drafted) -> Tree:
    """Build the draft tree. For `ar` and for finished sequences it is the root alone."""
    if drafted.grown is None:
        return root_only(state.root, 1)
    return jax.vmap(round.growth.finish)(drafted.grown, state.root)


def find_drawn(round: Round, drafted: Drafted) -> Drawn | None:
    """Find the distributions that the candidates of the round's tree were drawn from.

    None unless acceptance needs them.
    """
    if drafted.logprob is None:
        return None
    if drafted.below is None:
        return Drawn(drafted.logprob)
    count = round.growth.rows - 1
    best = jax.vmap(lambda pool: order_nodes(pool, count)[1])(drafted.pool)
    rows = jnp.take_along_axis(drafted.below, best, axis=1)
    return Drawn(drafted.logprob, jnp.pad(rows, ((0, 0), (1, 0))))  # the root's slot is number 0
