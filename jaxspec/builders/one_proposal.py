"""The growth of trees that are built from one proposal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders.growth import Growth, StepCandidates
from jaxspec.core.state import Nodes, Tree
from jaxspec.core.tree import root_only


class Held(NamedTuple):
    """Everything that a tree is built from: its candidates and its depth limit int32 []."""

    candidates: StepCandidates
    depth_limit: jax.Array


def grow_at_once(
    build: Callable[..., Tree], *, rows: int, candidates: int, longest: int, entropy: bool = False
) -> Growth:
    """Make the growth of trees that are built from one proposal.

    Args:
      build: (token int32 [D, C], logprob float32 [D, C], root int32 [], depth_limit int32 []) ->
        one tree of `rows` rows, where D is `longest`, at least 1. It also takes `entropy` float32
        [D] if `entropy` is set here.
      rows, candidates, longest, entropy: see `Growth`.
    """
    depth = max(longest, 1)

    def init(offered: StepCandidates, depth_limit: jax.Array) -> tuple[Held, Nodes]:
        deep, wide = offered.token.shape[1:]
        if deep < depth or wide < candidates:
            raise ValueError(
                f"candidates are {deep} deep and {wide} wide: "
                f"this builder reads {depth} by {candidates}"
            )
        if entropy and offered.entropy is None:
            raise ValueError(
                "this builder reads the entropies of the candidates: give them, see `rank`"
            )
        none = jnp.zeros(0, jnp.int32)
        return Held(offered, depth_limit), Nodes(none, none, none, none, none > 0)

    def grow(*_: Any) -> tuple[Held, Nodes]:
        raise ValueError("a tree of one proposal does not grow: call finish")

    def finish(held: Held, root: jax.Array) -> Tree:
        offered = held.candidates
        token, logprob = (x[0, :depth, :candidates] for x in (offered.token, offered.logprob))
        more = {"entropy": offered.entropy[0, :depth]} if entropy else {}
        return build(token, logprob, root, held.depth_limit, **more)

    return Growth(rows, candidates, longest, depth, 0, 0, init, grow, finish, entropy)


def _build_root(token: jax.Array, logprob: jax.Array, root: jax.Array, limit: jax.Array) -> Tree:
    return jax.tree.map(lambda x: x[0], root_only(root[None], 1))


ROOT_ONLY = grow_at_once(_build_root, rows=1, candidates=1, longest=0)
"""The growth of trees that hold only the root."""
