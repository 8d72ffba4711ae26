"""Grow: the drafter's proposals become the round's tree."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from jaxspec.builders.stepwise import Offers, Stepper, finish
from jaxspec.core.state import Candidates, DecodeState, Nodes, Pool, Tree
from jaxspec.core.tree import root_only
from jaxspec.engine.proposals import Drafted, depth_limit
from jaxspec.engine.round import Round


def grow(round: Round, state: DecodeState, drafted: Drafted) -> Tree:
    """The round's draft tree; without a drafter, and for finished sequences, its root alone."""
    proposed, builder = drafted.proposed, round.plan.builder
    if proposed is None:
        return root_only(state.root, 1)
    if isinstance(proposed, Tree):
        return proposed
    limit = depth_limit(round, state)
    if isinstance(builder, Stepper):
        return _grow_levels(builder, proposed, state.root, limit)
    return builder.build(proposed, state.root, limit)


def _grow_levels(
    stepper: Stepper, candidates: Candidates, root: jax.Array, limit: jax.Array
) -> Tree:
    """A tree that grows in steps, from candidates that are the same under every node of a depth."""

    def one(token: jax.Array, logprob: jax.Array, root: jax.Array, limit: jax.Array) -> Tree:
        def offers(depth: jax.Array | int, nodes: int) -> Offers:
            shape = (nodes, 1, stepper.candidates)
            return Offers(
                *(jnp.broadcast_to(x[depth, : stepper.candidates], shape) for x in (token, logprob))
            )

        def step(i: jax.Array, carry: tuple[Pool, Nodes]) -> tuple[Pool, Nodes]:
            return stepper.grow(*carry, offers(i + 1, stepper.nodes), i, limit)

        pool, _ = jax.lax.fori_loop(0, stepper.steps, step, stepper.begin(offers(0, 1), limit))
        return finish(pool, root, stepper.rows, stepper.longest)

    return jax.vmap(one)(candidates.token, candidates.logprob, root, limit)
