"""Medusa (Cai et al. 2024): independent heads over the target's last hidden state. Each head
proposes one further token.

Head i (from 0) reads the hidden state, after the final norm, of the last committed token x_t. The
target draws the root x_{t+1} from the same state. The head proposes x_{t+2+i}, the token i + 1
levels below the root. No head sees what another proposes, so one step is enough and nothing is
cached.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.config import DrafterConfig
from jaxspec.drafters.base import Committed, Drafter, Proposal, TargetHead
from jaxspec.drafters.pairs import last_row
from jaxspec.targets.linear import INIT


@dataclasses.dataclass(frozen=True)
class MedusaConfig(DrafterConfig):
    """Medusa heads (Cai et al. 2024): head i reads the target's last hidden state and proposes the
    token at depth i + 1. `feature_layers` is (number of target layers,), which means the hidden
    state after the final norm.

    Attributes:
      hidden_size: width E of the target's hidden state.
      heads: number of heads.
      layers: number of residual blocks of a head.
      own_projection: whether every head has its own output projection; otherwise all heads share
        the target's.
    """

    hidden_size: int
    heads: int
    layers: int = 1
    own_projection: bool = True

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted."""
        return self.heads


class ResidualBlock(nn.Module):
    """Compute `x + silu(x @ kernel + bias)` of H heads at once. Kernels and biases start at zero,
    so every block starts as the identity.
    """

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        heads, width = x.shape[-2:]
        kernel = self.param("kernel", nn.initializers.zeros, (heads, width, width))
        bias = self.param("bias", nn.initializers.zeros, (heads, width))
        return x + nn.silu(jnp.einsum("...he,hef->...hf", x, kernel) + bias)


class Medusa(nn.Module):
    """The heads. They have their own output projections, or share the target's."""

    config: MedusaConfig

    def setup(self):
        c = self.config
        self.block = [ResidualBlock() for _ in range(c.layers)]
        if c.own_projection:
            self.lm_head = self.param("lm_head", INIT, (c.heads, c.hidden_size, c.vocab_size))

    def __call__(self, hidden: jax.Array) -> jax.Array:
        """Map the target's hidden states [..., E] to the inputs [..., H, E] of the heads' output
        projections.
        """
        x = jnp.broadcast_to(
            hidden[..., None, :], (*hidden.shape[:-1], self.config.heads, hidden.shape[-1])
        )
        for block in self.block:
            x = block(x)
        return x

    def logits(self, x: jax.Array) -> jax.Array:
        """Return logits [..., H, V] of the heads' own projections."""
        return jnp.einsum("...he,hev->...hv", x, self.lm_head)


def make_medusa_drafter(config: MedusaConfig) -> Drafter:
    """Make Medusa heads: K = `config.heads` slots, one step.

    The state is the last committed token's hidden state, [B, E]. The decode loop accepts tokens;
    Medusa's typical acceptance is left out because it changes the text.
    """
    model = Medusa(config)

    def init(batch: int, capacity: int, dtype: Any) -> jax.Array:
        return jnp.zeros((batch, config.hidden_size), dtype)

    def absorb(
        params: Any, state: jax.Array, target: TargetHead, committed: Committed
    ) -> jax.Array:
        return last_row(committed.features.astype(state.dtype), committed.count, state)

    def start(
        params: Any, state: jax.Array, target: TargetHead, root: jax.Array, rows: int
    ) -> tuple[Proposal, None]:
        weights = {"params": params["params"]}
        x = model.apply(weights, state[:, None])
        return Proposal(
            model.apply(weights, x, method="logits") if config.own_projection else target.unembed(x)
        ), None

    return Drafter(config.feature_layers, config.depth, config.heads, init, absorb, start)
