"""Ask the policy, while a tree grows, which nodes to keep and which sequences to draft on.

The policy reads figures of draft distributions. A draft step computes one distribution per slot.
Figures are stored by the slot's number (`Nodes.source`) and looked up for the nodes that are
drafted from next. Only the figures that the policy asks for are computed.
"""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.builders.candidates import entropy
from jaxspec.core.split_vocabulary import find_best
from jaxspec.core.state import DecodeState, Nodes, Pool
from jaxspec.drafters.base import Proposal
from jaxspec.policies.protocol import TOP, Observation
from jaxspec.round.context import Round


class Sources(flax.struct.PyTreeNode):
    """Figures of the S slots of a round, in the order of computation; see `Observation`.

    Figures that the policy does not ask for are None.

    Attributes:
      entropy: float32 [B, S], nats.
      top: float32 [B, S, TOP], the largest probabilities.
      hidden: [B, S, E], the drafter's hidden states.
      carried: float32 [B, S], the policy's own numbers.
    """

    entropy: jax.Array | None = None
    top: jax.Array | None = None
    hidden: jax.Array | None = None
    carried: jax.Array | None = None


def init_sources(
    proposal: Proposal, slots: int, needs: frozenset[str], carries: bool = False
) -> Sources:
    """Make room for the figures that a policy asks for.

    Args:
      proposal: the first of the round, for its shapes.
      slots: S, slots that the round computes.
      needs: names of figures, see `Functions.needs`.
      carries: whether the policy carries a number from node to node.

    Raises:
      ValueError: the policy reads hidden states, and the drafter gives none.
    """
    batch, like = proposal.logits.shape[0], proposal.hidden
    if "hidden" in needs and like is None:
        raise ValueError(
            "the policy reads the drafter's hidden states, and this drafter gives none: choose another drafter or policy"
        )
    return Sources(
        jnp.zeros((batch, slots)) if "entropy" in needs else None,
        jnp.zeros((batch, slots, TOP)) if "top" in needs else None,
        jnp.zeros((batch, slots, like.shape[-1]), like.dtype)
        if "hidden" in needs and like is not None
        else None,
        jnp.zeros((batch, slots)) if carries else None,
    )


def record_sources(
    sources: Sources, proposal: Proposal, first: jax.Array | int, scale: float
) -> Sources:
    """Write the figures of a step's M * K slots from number `first` int32 [] on.

    Those of distributions are of the drafter's logits divided by `scale`.
    """
    batch = proposal.logits.shape[0]

    def put(room: jax.Array, value: jax.Array) -> jax.Array:
        value = value.reshape(batch, -1, *room.shape[2:]).astype(room.dtype)
        return jax.lax.dynamic_update_slice(room, value, (0, first) + (0,) * (room.ndim - 2))

    logits = proposal.logits.astype(jnp.float32) / scale
    logprob = jax.nn.log_softmax(logits)  # dead code if not asked for
    if sources.entropy is not None:
        sources = sources.replace(entropy=put(sources.entropy, entropy(logprob)))
    if sources.top is not None:
        best, _ = find_best(logprob, TOP, jax.lax.top_k)
        sources = sources.replace(top=put(sources.top, jnp.exp(best)))
    if sources.hidden is not None and proposal.hidden is not None:
        sources = sources.replace(hidden=put(sources.hidden, proposal.hidden))
    return sources


def record_carried(
    sources: Sources, values: jax.Array, slots: int, first: jax.Array | int
) -> Sources:
    """Write `values` float32 [B, M] for each node's `slots` slots, from number `first` int32 [] on."""
    assert sources.carried is not None, "init_sources makes room if the policy carries numbers"
    values = jnp.repeat(values, slots, axis=1)
    carried = jax.lax.dynamic_update_slice(sources.carried, values, (0, first))
    return sources.replace(carried=carried)


def select_sources(sources: Sources, source: jax.Array) -> dict[str, jax.Array]:
    """Look up the figures of slots `source` int32 [B, M], by name."""
    names = ("entropy", "top", "hidden", "carried")
    kept = {name: getattr(sources, name) for name in names if getattr(sources, name) is not None}
    return {
        name: jax.vmap(lambda room, at: room[at])(value, source) for name, value in kept.items()
    }


def show_pool(pool: Pool, scores: jax.Array | None) -> Pool:
    """Return a pool with the scores [B, P] that the policy reads; None: its own."""
    if scores is None:
        return pool
    return pool.replace(logprob=jnp.where(pool.logprob > -jnp.inf, scores, -jnp.inf))


def apply_stop_rule(
    round: Round,
    state: DecodeState,
    steps: jax.Array | int,
    pool: Pool,
    scores: jax.Array | None,
    nodes: Nodes,
    sources: Sources,
    grew: jax.Array,
) -> tuple[Pool, Nodes, Sources]:
    """Let the policy drop nodes of the newest level and decide which sequences draft on.

    The deepest level is also asked about, though nothing is drafted from it.

    Args:
      steps: draft steps taken after the root's.
      scores: float32 [B, P], of the pool at the scale that the policy reads; None: its own.
      grew: bool [B], sequences that took the last step.
    """
    growth, act, controls = round.growth, round.policy.act, round.request.controls
    logprob = jnp.take_along_axis(pool.logprob, nodes.node, axis=1)
    figures: dict[str, Any] = select_sources(sources, nodes.source)

    def look(pool: Pool, there: jax.Array) -> Observation:
        """Show the pool and the frontier where `there` bool [B, M] holds."""

        def at(pool: Pool) -> Observation:
            frontier = jnp.take_along_axis(pool.logprob, nodes.node, axis=1)
            frontier = jnp.where(there & (logprob > -jnp.inf), frontier, -jnp.inf)
            return Observation(state.cache.length, ~state.done, steps, pool, frontier, **figures)

        own = at(pool)
        return own if scores is None else at(show_pool(pool, scores)).replace(built=own)

    if act.keep is not None:
        seen = look(pool, logprob > -jnp.inf)
        kept = act.keep(controls, state.control, seen) & (logprob > -jnp.inf)
        fewer = _drop_nodes(pool, nodes, kept)
        pool = jax.tree.map(functools.partial(choose_where, grew), fewer, pool)
        nodes = nodes.replace(live=nodes.live & kept)
    seen = look(pool, nodes.live)
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
