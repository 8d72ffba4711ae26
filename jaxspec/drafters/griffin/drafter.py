"""The GRIFFIN drafter: a step proposes one token after every node of a level."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch as rows_of
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead
from jaxspec.drafters.griffin.network import GriffinConfig, GriffinDrafter
from jaxspec.drafters.pairs import check_layers, last_row
from jaxspec.drafters.scratch import Scratch


class GriffinState(flax.struct.PyTreeNode):
    """State that is kept between rounds.

    Attributes:
      cache: keys and values of the committed pairs; their number is the root's position.
      predict: [B, E], of the last pair; it gives the root's proposal.
      regress: [B, E], of the last pair; it is the feature of the root's children.
    """

    cache: KVCache
    predict: jax.Array
    regress: jax.Array


def make_griffin_drafter(config: GriffinConfig) -> Drafter:
    """Make GRIFFIN. The root's proposal costs no forward of its own; each further level costs one.

    Raises:
      ValueError: more than one layer.
    """
    check_layers(config.num_layers, "GRIFFIN")
    module = GriffinDrafter(config)

    def propose(target: TargetHead, predict: jax.Array) -> Proposal:
        return Proposal(target.unembed(predict)[:, :, None], hidden=predict[:, :, None])

    def init(batch: int, capacity: int, dtype: Any) -> GriffinState:
        none = jnp.zeros((batch, config.hidden_size), dtype)
        return GriffinState(allocate(config, batch, capacity, dtype), none, none)

    def absorb(
        params: Any, state: GriffinState, target: TargetHead, new: Committed
    ) -> GriffinState:
        tokens = target.embed(new.following)
        features = new.features.astype(tokens.dtype)
        positions = new.position[:, None] + jnp.arange(new.token.shape[1])
        prefix = state.cache.prefix(0)
        (predict, regress), (k, v) = module.apply(
            params, tokens, features, positions, prefix=prefix
        )
        return GriffinState(
            append(state.cache, (k[None],), (v[None],), new.count),
            last_row(predict, new.count, state.predict),
            last_row(regress, new.count, state.regress),
        )

    def start(
        params: Any, state: GriffinState, target: TargetHead, root: jax.Array, rows: int
    ) -> tuple[Proposal, Scratch]:
        regress = state.regress[:, None]
        # Row 0 represents the last pair. Its keys and values are in the cache, so the rows below
        # must not see it here too.
        scratch = rows_of.empty(config, root.shape[0], rows, regress.dtype)
        hidden = scratch.hidden.at[:, :1].set(regress)
        return propose(target, state.predict[:, None]), scratch.replace(hidden=hidden)

    def expand(
        params: Any,
        state: GriffinState,
        scratch: Scratch,
        target: TargetHead,
        nodes: Nodes,
        first: jax.Array,
    ) -> tuple[Proposal, Scratch]:
        scratch = rows_of.look(scratch, nodes.source, 1, first)
        mask = rows_of.pack_visible(scratch, nodes.token.shape[1], first)
        features = jnp.take_along_axis(scratch.hidden, nodes.source[..., None], axis=1)
        positions = state.cache.length[:, None] + nodes.depth - 1
        prefix = state.cache.prefix(0)
        earlier = (*scratch.layer(0), first)
        (predict, regress), (k, v) = module.apply(
            params, target.embed(nodes.token), features, positions, mask, prefix, earlier
        )
        scratch = rows_of.write(scratch, (k[None],), (v[None],), regress, first)
        return propose(target, predict), scratch

    return Drafter(config.feature_layers, config.depth, 1, init, absorb, start, expand)
