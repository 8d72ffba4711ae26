"""How DSpark's rules read a chain: the probability of each token, and of reaching it."""

from __future__ import annotations

import jax
import jax.numpy as jnp


def survival(logprob: jax.Array) -> jax.Array:
    """Compute the probability float32 [B, N - 1] that each drafted token is accepted.

    Args:
      logprob: float32 [B, N], cumulative log-probabilities of a chain's rows; the root's is 0 and
        padding has -inf.
    """
    return jnp.exp(logprob[:, 1:])


def conditional(logprob: jax.Array) -> jax.Array:
    """Compute the probability float32 [B, N - 1] that a token is accepted if those before it are.

    Args:
      logprob: see `survival`; tokens of padding get 0.
    """
    before = jnp.where(logprob[:, :-1] > -jnp.inf, logprob[:, :-1], 0.0)
    return jnp.exp(logprob[:, 1:] - before)
