"""The ParallelSpec drafter: one step proposes K tokens after the root."""

from __future__ import annotations

import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.state import KVCache
from jaxspec.drafters.base import Committed, Drafter, Proposal, TargetHead
from jaxspec.drafters.pairs import check_layers, last_row, spread
from jaxspec.drafters.parallelspec.network import ParallelSpec, ParallelSpecConfig


class ParallelSpecState(flax.struct.PyTreeNode):
    """State that is kept between rounds.

    Attributes:
      cache: keys and values of the committed pairs; their number is the root's position.
      fused: [B, E], the last pair's fused feature.
    """

    cache: KVCache
    fused: jax.Array


def make_parallelspec_drafter(config: ParallelSpecConfig) -> Drafter:
    """Make ParallelSpec: K = `config.slots` tokens in one step.

    Raises:
      ValueError: more than one layer.
    """
    check_layers(config.num_layers, "a ParallelSpec drafter")
    model = ParallelSpec(config)

    def init(batch: int, capacity: int, dtype: Any) -> ParallelSpecState:
        return ParallelSpecState(
            allocate(config, batch, capacity, dtype), jnp.zeros((batch, config.hidden_size), dtype)
        )

    def absorb(
        params: Any, state: ParallelSpecState, target: TargetHead, committed: Committed
    ) -> ParallelSpecState:
        apply = functools.partial(model.apply, {"params": params["params"]})
        fused = apply(committed.features, method="fuse")
        positions = committed.position[:, None] + jnp.arange(fused.shape[1])
        k, v = apply(target.embed(committed.following), fused, positions, method="context_kv")
        return ParallelSpecState(
            append(state.cache, (k,), (v,), committed.count),
            last_row(fused, committed.count, state.fused),
        )

    def start(
        params: Any, state: ParallelSpecState, target: TargetHead, root: jax.Array, rows: int
    ) -> tuple[Proposal, None]:
        apply = functools.partial(model.apply, {"params": params["params"]})
        # The last pair is in the cache already; it runs again as the first slot, which must not see
        # itself twice.
        before = state.cache.length - 1
        hidden = apply(target.embed(root), state.fused, before, state.cache.replace(length=before))
        logits = spread(params, project(params, hidden)[0], config.vocab_size)
        return Proposal(logits[:, None], hidden=hidden[:, None]), None

    def project(params: Any, hidden: jax.Array) -> tuple[jax.Array, None]:
        return model.apply({"params": params["params"]}, hidden, method="logits"), None

    sizes = config.feature_layers, config.depth, config.slots
    return Drafter(*sizes, init, absorb, start, project=project)
