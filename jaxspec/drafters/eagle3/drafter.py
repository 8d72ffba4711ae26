"""The EAGLE-3 drafter: a step proposes one token after every node of a level."""

from __future__ import annotations

from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch as rows_of
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead
from jaxspec.drafters.eagle3.network import EagleConfig, EagleDrafter
from jaxspec.drafters.pairs import check_layers, last_row, spread
from jaxspec.drafters.scratch import Scratch


class EagleState(flax.struct.PyTreeNode):
    """State that is kept between rounds.

    Attributes:
      cache: keys and values of the committed pairs; their number is the root's position.
      hidden: [B, E], the last pair's output; it gives the root's proposal and the feature of the
        root's children.
    """

    cache: KVCache
    hidden: jax.Array


def make_eagle_drafter(config: EagleConfig) -> Drafter:
    """Make EAGLE-3. The root's proposal costs no forward of its own; each further level costs one.

    Raises:
      ValueError: more than one layer.
    """
    check_layers(config.num_layers, "EAGLE-3")
    module = EagleDrafter(config)

    def embed(params: Any, target: TargetHead, tokens: jax.Array) -> jax.Array:
        if not config.own_embeddings:
            return target.embed(tokens)
        # The target's table may have more rows, which no text of the drafter's training used.
        return params["draft"]["embedding"][jnp.minimum(tokens, config.own_embeddings - 1)]

    def project(params: Any, hidden: jax.Array) -> tuple[jax.Array, None]:
        return module.apply(params, hidden, method="logits"), None

    def propose(params: Any, hidden: jax.Array) -> Proposal:
        logits = spread(params, project(params, hidden)[0], config.vocab_size)
        return Proposal(logits[:, :, None], hidden=hidden[:, :, None])

    def init(batch: int, capacity: int, dtype: Any) -> EagleState:
        return EagleState(
            allocate(config, batch, capacity, dtype), jnp.zeros((batch, config.hidden_size), dtype)
        )

    def absorb(params: Any, state: EagleState, target: TargetHead, new: Committed) -> EagleState:
        features = module.apply(params, new.features, method="fuse")
        positions = new.position[:, None] + jnp.arange(new.token.shape[1])
        prefix = state.cache.prefix(0)
        hidden, (k, v) = module.apply(
            params, embed(params, target, new.following), features, positions, prefix=prefix
        )
        last = last_row(hidden, new.count, state.hidden)
        return EagleState(append(state.cache, (k[None],), (v[None],), new.count), last)

    def start(
        params: Any, state: EagleState, target: TargetHead, root: jax.Array, rows: int
    ) -> tuple[Proposal, Scratch]:
        hidden = state.hidden[:, None]
        # Row 0 represents the last pair. Its keys and values are in the cache, so the rows below
        # must not see it here too.
        scratch = rows_of.empty(config, root.shape[0], rows, hidden.dtype)
        return propose(params, hidden), scratch.replace(hidden=scratch.hidden.at[:, :1].set(hidden))

    def expand(
        params: Any,
        state: EagleState,
        scratch: Scratch,
        target: TargetHead,
        nodes: Nodes,
        first: jax.Array,
    ) -> tuple[Proposal, Scratch]:
        scratch = rows_of.look(scratch, nodes.source, 1, first)
        mask = rows_of.pack_visible(scratch, nodes.token.shape[1], first)
        before = jnp.take_along_axis(scratch.hidden, nodes.source[..., None], axis=1)
        features = module.apply(params, before, method="feed")
        positions = state.cache.length[:, None] + nodes.depth - 1
        prefix = state.cache.prefix(0)
        earlier = (*scratch.layer(0), first)
        embedded = embed(params, target, nodes.token)
        hidden, (k, v) = module.apply(params, embedded, features, positions, mask, prefix, earlier)
        return propose(params, hidden), rows_of.write(
            scratch, (k[None],), (v[None],), hidden, first
        )

    sizes = config.feature_layers, config.depth, 1
    return Drafter(*sizes, init, absorb, start, expand, project=project)
