"""A smaller language model of the target's family as drafter (Leviathan et al. 2023; Chen et al.
2023), with its own cache.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.cache import allocate, append
from jaxspec.core.config import TargetConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters import scratch
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead
from jaxspec.drafters.scratch import Scratch
from jaxspec.targets.transformer import Earlier, Transformer


@dataclasses.dataclass(frozen=True)
class DraftModelConfig:
    """A smaller model of the target's family as drafter (Leviathan et al. 2023; Chen et al. 2023),
    with its own cache.

    Attributes:
      model: architecture of the small model; its tokens are the target's.
      target_vocab_size: rows of the target's embedding table; 0: as many as the model's. Tables of
        a family are padded differently.
      depth: longest drafted path unless a call says otherwise; each level costs one forward.
      score_temperature: see `jaxspec.core.config.DrafterConfig`.
    """

    model: TargetConfig
    depth: int = 8
    score_temperature: tuple[float, float] = (1.0, 1.0)
    feature_layers: tuple[int, ...] = ()
    target_vocab_size: int = 0

    @property
    def vocab_size(self) -> int:
        """Return the vocabulary size of the target."""
        return self.target_vocab_size or self.model.vocab_size

    @property
    def draft_vocab_size(self) -> int | None:
        """Return the number of tokens that can be drafted; None for the target's vocabulary."""
        return self.model.vocab_size if self.model.vocab_size < self.vocab_size else None


class DraftModelState(flax.struct.PyTreeNode):
    """The model's cache of all tokens so far, the root included, and its hidden state [B, E] after
    the root.
    """

    cache: KVCache
    hidden: jax.Array


def make_draft_model_drafter(config: DraftModelConfig) -> Drafter:
    """Make the drafter. It runs one forward of the small model per level, except for the first
    level, which `absorb` has computed.
    """
    model, rows = Transformer(config.model), config.model.vocab_size

    def known(tokens: jax.Array) -> jax.Array:
        return jnp.minimum(tokens, rows - 1) if rows < config.vocab_size else tokens

    def project(params: Any, hidden: jax.Array) -> jax.Array:
        """Compute logits [..., V] of the target's tokens, -inf for those without a row."""
        logits = model.apply(params, hidden, method="logits")
        if rows == config.vocab_size:
            return logits
        logits = logits[..., : config.vocab_size]
        more = [(0, 0)] * (logits.ndim - 1) + [(0, config.vocab_size - logits.shape[-1])]
        return jnp.pad(logits, more, constant_values=-jnp.inf)

    def init(batch: int, capacity: int, dtype: Any) -> DraftModelState:
        cache = allocate(config.model, batch, capacity + 1, dtype)
        return DraftModelState(cache, jnp.zeros((batch, config.model.hidden_size), dtype))

    def absorb(
        params: Any, state: DraftModelState, target: TargetHead, new: Committed
    ) -> DraftModelState:
        # Read from the first token on. Rows that the cache already holds are written again, with
        # the same values.
        tokens = known(jnp.concatenate([new.token[:, :1], new.following], axis=1))
        positions = new.position[:, None] + jnp.arange(tokens.shape[1])
        before = state.cache.replace(length=new.position)
        out = model.apply(params, tokens, positions, before)
        some = new.count > 0
        cache = append(before, out.k, out.v, jnp.where(some, new.count + 1, 0))
        last = jnp.take_along_axis(out.hidden, new.count[:, None, None], axis=1)[:, 0]
        length = jnp.where(some, cache.length, state.cache.length)
        return DraftModelState(
            cache.replace(length=length), jnp.where(some[:, None], last, state.hidden)
        )

    def start(
        params: Any, state: DraftModelState, target: TargetHead, root: jax.Array, rows: int
    ) -> tuple[Proposal, Scratch]:
        logits = project(params, state.hidden[:, None])
        room = scratch.empty(config.model, root.shape[0], rows, state.hidden.dtype)
        return Proposal(logits[:, None], hidden=state.hidden[:, None, None]), room

    def expand(
        params: Any,
        state: DraftModelState,
        room: Scratch,
        target: TargetHead,
        nodes: Nodes,
        first: jax.Array,
    ) -> tuple[Proposal, Scratch]:
        room = scratch.look(room, nodes.source, 1, first)
        mask = scratch.pack_visible(room, nodes.token.shape[1], first)
        # The root is at position length - 1.
        positions = state.cache.length[:, None] + nodes.depth - 1
        # A row sees as many rows as its node is deep.
        everywhere = state.cache.length[:, None] + room.visible.sum(-1, dtype=jnp.int32) - 1
        earlier = Earlier(room.k, room.v, first, everywhere)
        out = model.apply(params, nodes.token, positions, state.cache, mask, earlier=earlier)
        logits = project(params, out.hidden)
        proposal = Proposal(logits[:, :, None], hidden=out.hidden[:, :, None])
        return proposal, scratch.write(room, out.k, out.v, out.hidden, first)

    return Drafter((), config.depth, 1, init, absorb, start, expand)
