"""Ask the policy, while a tree grows, which nodes to keep and which sequences to draft on."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.state import DecodeState, Nodes, Pool
from jaxspec.policies.protocol import Observation
from jaxspec.round.context import Round
from jaxspec.round.sources import Sources, record_carried, select_sources


def asks_policy(round: Round) -> bool:
    """Whether the policy decides after draft steps."""
    if round.plan.policy is None or not round.plan.in_steps:
        return False
    act = round.plan.policy.act
    return act.deeper is not None or act.keep is not None


def apply_stop_rule(
    round: Round,
    state: DecodeState,
    steps: jax.Array | int,
    pool: Pool,
    nodes: Nodes,
    sources: Sources,
    grew: jax.Array,
) -> tuple[Pool, Nodes, Sources]:
    """Let the policy drop nodes of the newest level and decide which sequences draft on.

    The deepest level is also asked about, though nothing is drafted from it.

    Args:
      steps: draft steps taken after the root's.
      grew: bool [B], sequences that took the last step.
    """
    growth, act, controls = round.growth, round.policy.act, round.request.controls
    logprob = jnp.take_along_axis(pool.logprob, nodes.node, axis=1)
    figures: dict[str, Any] = select_sources(sources, nodes.source)
    seen = Observation(state.cache.length, ~state.done, steps, pool, logprob, **figures)
    if act.keep is not None:
        kept = act.keep(controls, state.control, seen) & (logprob > -jnp.inf)
        fewer = _drop_nodes(pool, nodes, kept)
        pool = jax.tree.map(functools.partial(choose_where, grew), fewer, pool)
        nodes = nodes.replace(live=nodes.live & kept)
    seen = seen.replace(pool=pool, frontier=jnp.where(nodes.live, logprob, -jnp.inf))
    if act.deeper is not None:
        on = act.deeper(controls, state.control, seen)
        nodes = nodes.replace(live=nodes.live & on[:, None])
    # Without further steps nothing reads the carried numbers.
    if act.carry is not None and growth.steps:
        values = act.carry(controls, state.control, seen)
        first = growth.slots + steps * growth.nodes * growth.slots
        sources = record_carried(sources, values, growth.slots, first)
    return pool, nodes, sources


def _drop_nodes(pool: Pool, nodes: Nodes, kept: jax.Array) -> Pool:
    """Drop the nodes of the level of `nodes` that are not `kept` bool [B, M]."""
    chosen = jax.vmap(lambda room, at, kept: room.at[at].max(kept))(
        jnp.zeros(pool.depth.shape, bool), nodes.node, kept
    )
    dropped = (pool.depth == nodes.depth[:, :1]) & ~chosen
    return pool.replace(logprob=jnp.where(dropped, -jnp.inf, pool.logprob))


def choose_where(new_where: jax.Array, new: jax.Array, old: jax.Array) -> jax.Array:
    """Choose `new` [B, …] for sequences where `new_where` bool [B] holds, else `old`."""
    return jnp.where(new_where.reshape(-1, *(1,) * (new.ndim - 1)), new, old)
