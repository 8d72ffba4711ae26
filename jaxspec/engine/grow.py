"""Grow: turn what the drafter proposed into the round's tree."""

from __future__ import annotations

import jax

from jaxspec.core.state import DecodeState, Tree
from jaxspec.core.tree import root_only
from jaxspec.engine.proposals import Drafted
from jaxspec.engine.round import Round


def grow(round: Round, state: DecodeState, drafted: Drafted) -> Tree:
    """Build the draft tree. For `ar` and for finished sequences it is the root alone."""
    if drafted.grown is None:
        return root_only(state.root, 1)
    return jax.vmap(round.growth.finish)(drafted.grown, state.root)
