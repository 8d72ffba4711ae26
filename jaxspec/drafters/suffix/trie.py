"""The tree of continuations of a text's last tokens, in arrays of fixed sizes.

A suffix tree that counts the occurrences of every substring has this tree below the node of the
longest suffix of the text that occurs earlier. Here the occurrences of that suffix are found by
comparison, and the tree is made of them: nodes of depth k are the different sequences of k tokens
that followed.
"""

from __future__ import annotations

import flax.struct
import jax
import jax.numpy as jnp


class Trie(flax.struct.PyTreeNode):
    """What followed R occurrences, the latest first, D tokens deep.

    A node of depth k + 1 stands in row k, at the first of the occurrences that pass through it.

    Attributes:
      token: int32 [B, D, R], tokens; 0 beyond an occurrence's end.
      first: int32 [B, D, R], the first occurrence with the same tokens up to here; R beyond the end.
      count: int32 [B, D, R], occurrences that pass through the node; 0 where no node stands.
      chance: float32 [B, D, R], of nodes: the product along the path of shares of the counts.
      matched: int32 [B], tokens of the longest suffix that occurs earlier; 0 without one.
    """

    token: jax.Array
    first: jax.Array
    count: jax.Array
    chance: jax.Array
    matched: jax.Array


def grow_trie(
    token: jax.Array, matched: jax.Array, length: jax.Array, shortest: int, size: int, depth: int
) -> Trie:
    """Make the tree of one text, without a batch axis.

    Args:
      token: int32 [S]; a token below 0 ends what follows an occurrence.
      matched: int32 [S], see `match_lengths`; 0 at places to leave out.
      length: int32 [], number of tokens.
      shortest: matches of fewer tokens are none.
      size: R, the latest occurrences of the longest match that are counted.
      depth: D.
    """
    place = jnp.arange(token.shape[0])
    goes_on = (place + 1 < length) & (jnp.roll(token, -1) >= 0)
    matched = jnp.where(goes_on & (matched >= shortest), matched, 0)
    longest = matched.max()
    best = jnp.where((matched == longest) & (longest > 0), place, -1)
    latest = jax.lax.top_k(best, min(size, len(best)))[0]
    latest = jnp.pad(latest, (0, size - len(latest)), constant_values=-1)
    index = latest + 1 + jnp.arange(depth)[:, None]  # [D, R]
    found = token[jnp.minimum(index, len(token) - 1)]
    there = jnp.cumprod((latest >= 0) & (index < length) & (found >= 0), axis=0).astype(bool)
    # Entry (k, a, b): occurrences a and b go on with the same k + 1 tokens.
    both = there[:, :, None] & there[:, None]
    same = jnp.cumprod((found[:, :, None] == found[:, None]) & both, axis=0).astype(bool)
    first = jnp.where(there, same.argmax(-1), size)
    heads = first == jnp.arange(size)
    count = same.sum(-1, dtype=jnp.int32)
    above = jnp.concatenate([jnp.ones_like(same[:1]), same[:-1]])
    total = (above & there[:, None]).sum(-1)
    chance = jnp.cumprod(jnp.where(there, count / jnp.maximum(total, 1), 0.0), axis=0)
    return Trie(
        jnp.where(there, found, 0),
        first,
        jnp.where(heads, count, 0),
        jnp.where(heads, chance, 0.0),
        longest,
    )


def score_trie(trie: Trie, most: jax.Array) -> jax.Array:
    """Sum up the chances float32 [B] of the `most` int32 [B] likeliest nodes.

    It is the number of drafted tokens that are expected to be right.
    """
    chance = jnp.sort(trie.chance.reshape(len(most), -1), axis=-1, descending=True)
    return jnp.where(jnp.arange(chance.shape[-1]) < most[:, None], chance, 0.0).sum(-1)


def find_likeliest(trie: Trie) -> jax.Array:
    """Walk down by the most frequent tokens, of equal ones the latest: int32 [B, D], -1 at the end."""
    tokens, firsts, counts = (jnp.moveaxis(x, 1, 0) for x in (trie.token, trie.first, trie.count))
    here, path = counts[0], []
    for level in range(len(tokens)):
        at = here.argmax(-1)[:, None]
        more = jnp.take_along_axis(here, at, axis=1) > 0
        path.append(jnp.where(more, jnp.take_along_axis(tokens[level], at, axis=1), -1))
        if level + 1 < len(tokens):
            here = jnp.where((firsts[level] == at) & more, counts[level + 1], 0)
    return jnp.concatenate(path, axis=1)
