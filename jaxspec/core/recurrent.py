"""States of recurrent layers: allocate, and advance by the rows that were committed.

Keys and values of a token can be masked again; a state cannot forget one. So a forward pass changes
no state. It returns a `Stash`, small beside states, of which `commit` adds the accepted rows.
"""

from __future__ import annotations

from typing import NamedTuple

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from jaxspec.core.config import TargetConfig, TransformerConfig
from jaxspec.core.state import RecurrentState

HIGHEST = jax.lax.Precision.HIGHEST  # a GPU would multiply float32 in TF32


class Stash(NamedTuple):
    """What `commit` needs of T rows of gated delta nets, with the axes [L, B] in front.

    Attributes:
      rows: [T, C], what went into the convolution.
      k: float32 [T, Hk, dk], normalised keys.
      u: float32 [T, Hv, dv], what each row adds to the state under its key.
      decay: float32 [T, Hv], logarithm of the row's own decay, at most 0.
    """

    rows: jax.Array
    k: jax.Array
    u: jax.Array
    decay: jax.Array


def allocate_states(
    config: TransformerConfig, batch: int, dtype: DTypeLike
) -> tuple[RecurrentState, ...]:
    """Allocate the states of all groups of recurrent layers before the first token."""
    states = []
    for delta, layers in config.list_recurrent_groups():
        first = len(layers), batch
        conv = jnp.zeros((*first, delta.conv_width - 1, delta.channels), dtype)
        sizes = delta.value_heads, delta.key_dim, delta.value_dim
        states.append(RecurrentState(conv, jnp.zeros((*first, *sizes), jnp.float32)))
    return tuple(states)


def refuse_recurrent(target: TargetConfig, what: str) -> None:
    """Refuse a target with recurrent layers.

    Args:
      what: end of the message: what cannot be done with it, and what to do instead.

    Raises:
      ValueError: it has some.
    """
    if target.list_recurrent_groups():
        raise ValueError(f"a model with recurrent layers (gated delta nets) cannot {what}")


def commit(state: RecurrentState, stash: Stash, count: jax.Array) -> RecurrentState:
    """Advance states of all layers by the first `count` int32 [B] rows, which follow one another.

    A count of 0 leaves a state bit for bit as it is. Rows beyond the count may hold anything
    finite.
    """
    width = state.conv.shape[2]
    rows = jnp.concatenate([state.conv, stash.rows.astype(state.conv.dtype)], axis=2)
    last = count[:, None] + jnp.arange(width)
    conv = jnp.take_along_axis(rows, last[None, :, :, None], axis=2)
    return RecurrentState(conv, advance(state.s, stash.k, stash.u, stash.decay, count))


def advance(
    s: jax.Array, k: jax.Array, u: jax.Array, decay: jax.Array, count: jax.Array
) -> jax.Array:
    """Compute S' = e^(G_a) S + sum over rows t <= a of e^(G_a - G_t) k_t u_t, float32.

    Args:
      s: float32 [..., B, Hv, dk, dv].
      k, u, decay: of T rows that follow one another, with the axes [..., B] in front, see `Stash`.
      count: int32 [B], a + 1.
    """
    used = (jnp.arange(k.shape[-3]) < count[:, None])[..., None]
    decay = jnp.where(used, decay, 0.0)
    # Sums of what follows a row, not differences of sums from the first row on: those of many rows
    # are large, and would round away the digits of the rows that count most, the last.
    since = jax.lax.cumsum(decay, axis=decay.ndim - 2, reverse=True)
    after = jnp.concatenate([since[..., 1:, :], jnp.zeros_like(since[..., :1, :])], axis=-2)
    weight = jnp.where(used, jnp.exp(after), 0.0)[..., None]
    heads = k.shape[-2]
    added = (weight * u).reshape(*u.shape[:-2], heads, -1, u.shape[-1])  # value heads by key head
    added = jnp.einsum("...tkd,...tkrv->...krdv", k, added, precision=HIGHEST)
    return jnp.exp(since[..., 0, :])[..., None, None] * s + added.reshape(s.shape)
