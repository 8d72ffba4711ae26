"""Logit bias: what a request adds to the logits of some tokens before it draws from them."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.call.arguments import check_count

BIASES = 64
"""Tokens of a request that may have a bias."""

LARGEST = 100.0
"""Largest bias, OpenAI's limit."""


class LogitBias(NamedTuple):
    """Biases of B slots.

    Attributes:
      token: int32 [B, BIASES]; -1 is padding.
      value: float32 [B, BIASES].
    """

    token: jax.Array
    value: jax.Array


def add_bias(logits: jax.Array, slot: jax.Array, bias: LogitBias) -> jax.Array:
    """Add to logits [R, V] of the slots int32 [R] their biases, in float32.

    bfloat16 would round a large bias and the logit to ties.
    """
    row = jnp.arange(logits.shape[0])[:, None]
    # Negative indices would count from the end; those beyond it are dropped.
    token = jnp.where(bias.token < 0, logits.shape[1], bias.token)[slot]
    return logits.astype(jnp.float32).at[row, token].add(bias.value[slot], mode="drop")


def check_bias(given: Any, vocabulary: int) -> tuple[tuple[int, float], ...]:
    """Check pairs of token ids and biases; return them as integers and floats.

    Raises:
      TypeError, ValueError: a token or a bias is invalid, or there are too many.
    """
    try:
        listed = [(id, float(value)) for id, value in given]
    except (TypeError, ValueError, OverflowError):
        raise TypeError(
            "logit_bias must be pairs of a token id and a number, such as ((50, -1.5),)"
        ) from None
    last = vocabulary - 1
    pairs = tuple(
        (check_count("a token of logit_bias", id, 0, last), value) for id, value in listed
    )
    if len(pairs) > BIASES or len(dict(pairs)) < len(pairs):
        raise ValueError(
            f"logit_bias has {len(pairs)} tokens: give at most {BIASES}, none of them twice"
        )
    if not all(np.isfinite(value) and abs(value) <= LARGEST for _, value in pairs):
        raise ValueError(f"logit_bias has a value beyond {LARGEST:g}: give -100 to 100")
    return pairs
