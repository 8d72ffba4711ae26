"""TreeFlash (arXiv 2606.03819): DFlash's backbone, and a layer that corrects the hidden state of a
slot for the token before it.

With h the backbone's output at a slot before the final norm and e the embedding of the token before,
the slot proposes softmax(lm_head(norm(h + c(e, norm(h))))). The final norm is applied twice: to what
the correction reads, and to the sum.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.state import KVCache
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig
from jaxspec.drafters.dflash.shapes import init_backbone
from jaxspec.targets.linear import Linear
from jaxspec.targets.norm import RMSNorm
from pallas_kernels.reference import Norm

# Of the norm of embeddings, whatever the config says of the others.
_EMBEDDING_EPS = 1e-6


@dataclasses.dataclass(frozen=True, kw_only=True)
class TreeFlashConfig(BlockDrafterConfig):
    """A TreeFlash drafter: DFlash's backbone and a correction for the token before a slot.

    Attributes:
      correction: whether there is one (`ar_approximation: swiglu`). Without it (null), all nodes of
        a depth propose the same, as DFlash's do.
      conditions: M, the most probable tokens of a slot that the next one is conditioned on; nodes
        with other tokens are leaves (`top_m` of the authors' code).
      candidate_tokens: rows of the authors' own trees, the root included. Their files state it; here
        the call's `budget` counts, and configs that differ in it alone are equal.
      builder: see `BlockDrafterConfig`. The default is the authors' tree, of up to 16 children of a
        node (`top_k`).
    """

    correction: bool = True
    conditions: int = 16
    candidate_tokens: int = dataclasses.field(default=16, compare=False)
    builder: str = "lattice/candidates=16"

    def __post_init__(self) -> None:
        if self.causal:
            raise ValueError("every slot of TreeFlash sees the whole block: leave causal out")
        if self.draft_vocab_size is not None:
            raise ValueError(
                "TreeFlash has no reduced draft vocabulary: leave draft_vocab_size out"
            )
        if self.conditions < 1:
            raise ValueError(f"conditions is {self.conditions}: give at least 1 token")


class Correction(nn.Module):
    """The correction of a slot's hidden state: a gated layer over the token before and the slot."""

    config: TreeFlashConfig

    def setup(self):
        c = self.config
        self.norm = RMSNorm(Norm(_EMBEDDING_EPS))
        self.up_gate = Linear(2 * c.ffn_size, bias=True)
        self.down = Linear(c.hidden_size)

    def __call__(self, previous: jax.Array, hidden: jax.Array) -> jax.Array:
        """Correct slots.

        Args:
          previous: [..., E], embeddings of the tokens before the slots.
          hidden: [..., E], hidden states of the slots after the final norm.

        Returns:
          [..., E], what is added to the hidden states before the final norm.
        """
        read = jnp.concatenate([self.norm(previous), hidden], axis=-1)
        up, gate = jnp.split(self.up_gate(read), 2, axis=-1)  # the gate is the second half
        return self.down(nn.silu(gate) * up)


class TreeFlash(nn.Module):
    """Backbone and correction; embeddings and the output projection are the target's."""

    config: TreeFlashConfig

    def setup(self):
        self.backbone = BlockDrafter(self.config)
        if self.config.correction:
            self.correction = Correction(self.config)

    def context_kv(self, features: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `BlockDrafter.context_kv`."""
        return self.backbone.context_kv(features, positions)

    def __call__(self, block: jax.Array, positions: jax.Array, cache: KVCache) -> jax.Array:
        """Return hidden states [B, T, E] of a block before the final norm, see `BlockDrafter`."""
        return self.backbone.residual(block, positions, cache)

    def marginal(self, residual: jax.Array) -> jax.Array:
        """Return what is projected to logits without the token before: the final norm of [..., E]."""
        return self.backbone.norm(residual)

    def correct(self, residual: jax.Array, previous: jax.Array) -> jax.Array:
        """Return what is projected to logits after a token.

        Args:
          residual: [..., E], hidden states of the slots before the final norm.
          previous: [..., E], embeddings of the tokens before the slots.
        """
        normed = self.backbone.norm(residual)
        if not self.config.correction:
            return normed
        return self.backbone.norm(residual + self.correction(previous, normed))


def init_variables(config: TreeFlashConfig) -> dict[str, Any]:
    """Initialize the variables of `TreeFlash(config)`, for their shapes."""

    def touch(drafter: TreeFlash, row: jax.Array, hidden: jax.Array) -> None:
        drafter.correct(hidden, hidden)

    return init_backbone(TreeFlash(config), config, touch)
