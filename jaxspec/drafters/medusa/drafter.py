"""The Medusa drafter: one step proposes a token for each head, and nothing is cached."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.drafters.base import Committed, Drafter, Proposal, TargetHead
from jaxspec.drafters.medusa.network import Medusa, MedusaConfig
from jaxspec.drafters.pairs import last_row


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
