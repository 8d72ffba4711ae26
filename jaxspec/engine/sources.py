"""What policies see of the draft distributions of a growing tree.

A draft step computes one distribution per slot. The figures that a policy asks for are kept by the
number of the slot (`Nodes.source`) and looked up for the nodes that are drafted from next. Nothing
is computed that no policy asks for.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.builders.candidates import entropy
from jaxspec.drafters.base import Proposal
from jaxspec.policies.protocol import TOP


class Sources(flax.struct.PyTreeNode):
    """Figures of the S slots of a round, in the order that they are computed; None: not asked for.

    Attributes:
      entropy: float32 [B, S]. top: float32 [B, S, TOP]. hidden: [B, S, E]. carried: float32 [B, S].
        See `Observation`.
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
      proposal: the round's first. slots: S, slots that the round computes. needs: names of figures,
        see `Functions.needs`. carries: whether the policy carries a number from node to node.

    Raises:
      ValueError: hidden states are asked for, and the drafter shows none.
    """
    batch, like = proposal.logits.shape[0], proposal.hidden
    if "hidden" in needs and like is None:
        raise ValueError(
            "the policy reads the drafter's hidden states, and this drafter shows none: choose another one"
        )
    return Sources(
        jnp.zeros((batch, slots)) if "entropy" in needs else None,
        jnp.zeros((batch, slots, TOP)) if "top" in needs else None,
        jnp.zeros((batch, slots, like.shape[-1]), like.dtype)
        if "hidden" in needs and like is not None
        else None,
        jnp.zeros((batch, slots)) if carries else None,
    )


def record_sources(sources: Sources, proposal: Proposal, first: jax.Array | int) -> Sources:
    """Write the figures of a step's M * K slots from number `first` int32 [] on."""
    batch = proposal.logits.shape[0]

    def put(room: jax.Array, value: jax.Array) -> jax.Array:
        value = value.reshape(batch, -1, *room.shape[2:]).astype(room.dtype)
        return jax.lax.dynamic_update_slice(room, value, (0, first) + (0,) * (room.ndim - 2))

    logprob = jax.nn.log_softmax(proposal.logits.astype(jnp.float32))  # dead code if not asked for
    if sources.entropy is not None:
        sources = sources.replace(entropy=put(sources.entropy, entropy(logprob)))
    if sources.top is not None:
        sources = sources.replace(top=put(sources.top, jnp.exp(jax.lax.top_k(logprob, TOP)[0])))
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
    """The figures asked for, by name, of the slots `source` int32 [B, M]."""
    names = ("entropy", "top", "hidden", "carried")
    kept = {name: getattr(sources, name) for name in names if getattr(sources, name) is not None}
    return {
        name: jax.vmap(lambda room, at: room[at])(value, source) for name, value in kept.items()
    }
