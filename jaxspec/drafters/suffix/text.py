"""The text so far on the device, and where its last tokens occur in it or elsewhere."""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.drafters.base import Committed


class Text(flax.struct.PyTreeNode):
    """Tokens int32 [B, S] so far, the root included, and their number int32 [B]."""

    token: jax.Array
    length: jax.Array


def make_text(batch: int, capacity: int) -> Text:
    """Make empty texts of up to `capacity` tokens and a root."""
    return Text(jnp.zeros((batch, capacity + 1), jnp.int32), jnp.zeros(batch, jnp.int32))


def append_text(text: Text, new: Committed) -> Text:
    """Append committed tokens."""
    # Write the tokens from the first one on; the root is already there and is written again.
    tokens = jnp.concatenate([new.token[:, :1], new.following], axis=1)
    slot, count = jnp.arange(tokens.shape[1]), new.count[:, None]
    at = jnp.where((slot <= count) & (count > 0), new.position[:, None] + slot, text.token.shape[1])
    written = jax.vmap(lambda row, index, value: row.at[index].set(value, mode="drop"))(
        text.token, at, tokens
    )
    return Text(written, jnp.where(new.count > 0, new.position + new.count + 1, text.length))


def last_tokens(token: jax.Array, length: jax.Array, count: int) -> jax.Array:
    """Return the last `count` tokens of a text [S], the last one first."""
    return token[jnp.maximum(length - 1 - jnp.arange(count), 0)]


def match_lengths(token: jax.Array, tail: jax.Array, length: jax.Array) -> jax.Array:
    """Count the tokens before every place that are the last ones of a text.

    Args:
      token: int32 [S], where to look: the text itself, or another one.
      tail: int32 [n], see `last_tokens`; no longer matches are told apart.
      length: int32 [], number of tokens of the text.

    Returns:
      int32 [S], of the matches that end with each place, the place included.
    """
    size, longest = token.shape[0], tail.shape[0]
    place = jnp.arange(size)
    padded = jnp.pad(token, (longest - 1, 0))
    same = jnp.ones(size, bool)
    matched = jnp.zeros(size, jnp.int32)
    for n in range(1, longest + 1):
        # Compare the tokens n - 1 places before an occurrence's end and before the text's end.
        before = padded[longest - n :][:size]
        same &= (place >= n - 1) & (before == tail[n - 1]) & (length >= n)
        matched = jnp.where(same, n, matched)
    return matched
