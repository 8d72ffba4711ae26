"""Suffix decoding (SuffixDecoding, Oliaro et al. 2024, arXiv 2411.04975): find the longest suffix of
the text that occurs earlier, and propose the tree of what followed it, by frequency.

It has no weights and runs no forward. Where earlier answers are kept (`store.remember`), the tree
may come from them.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.config import DrafterConfig
from jaxspec.drafters.base import Committed, Drafter, Nodes, Proposal, TargetHead
from jaxspec.drafters.suffix.text import Text, append_text, last_tokens, make_text, match_lengths
from jaxspec.drafters.suffix.trie import Trie, grow_trie, score_trie


@dataclasses.dataclass(frozen=True, kw_only=True)
class SuffixConfig(DrafterConfig):
    """Suffix decoding: the tree of what followed earlier occurrences of the text's last tokens.

    Attributes:
      depth: longest drafted path.
      longest: tokens of the longest suffix that is told from longer ones.
      shortest: tokens of the shortest suffix that is looked up.
      occurrences: R, the latest occurrences of a suffix that are counted; at least 10.
      factor: alpha, drafted tokens per token of the suffix (the paper's MAX_SPEC).
    """

    depth: int = 16
    longest: int = 16
    shortest: int = 1
    occurrences: int = 32
    factor: float = 2.0

    def __post_init__(self) -> None:
        least = {"depth": 1, "longest": 1, "shortest": 1, "occurrences": 10}
        for name, low in least.items():
            if getattr(self, name) < low:
                raise ValueError(f"{name} is {getattr(self, name)}: give at least {low}")
        if self.factor <= 0:
            raise ValueError(f"factor is {self.factor}: give a number above 0")


class Found(flax.struct.PyTreeNode):
    """What the steps of one round share.

    Attributes:
      trie: the tree of continuations.
      most: int32 [B], tokens to draft at most.
      at: int32 [B, S], the occurrence at which the node of each slot stands; -1 for the root.
    """

    trie: Trie
    most: jax.Array
    at: jax.Array


def make_suffix_drafter(config: SuffixConfig) -> Drafter:
    """Make the drafter. It takes a step per token of a path; a node proposes what followed it."""
    start = functools.partial(_start, config)
    return Drafter(
        (),
        config.depth,
        1,
        _init,
        _absorb,
        start,
        _expand,
        choices=config.occurrences,
        most_nodes=lambda found: found.most,
    )


def _init(batch: int, capacity: int, dtype: Any) -> Text:
    return make_text(batch, capacity)


def _absorb(params: Any, text: Text, target: TargetHead, new: Committed) -> Text:
    return append_text(text, new)


def find_continuations(
    text: Text, *, longest: int, shortest: int, occurrences: int, depth: int
) -> Trie:
    """Make the trees of what followed the longest suffixes of texts in the texts themselves.

    Args:
      longest, shortest, occurrences, depth: see `SuffixConfig`.
    """

    def one(token: jax.Array, length: jax.Array) -> Trie:
        matched = match_lengths(token, last_tokens(token, length, longest), length)
        return grow_trie(token, matched, length, shortest, occurrences, depth)

    return jax.vmap(one)(text.token, text.length)


def _find_in_store(config: SuffixConfig, text: Text, store: jax.Array) -> Trie:
    """Make the trees of what followed the texts' longest suffixes in earlier answers."""

    def one(token: jax.Array, length: jax.Array) -> Trie:
        matched = match_lengths(store, last_tokens(token, length, config.longest), length)
        size = jnp.int32(len(store))
        return grow_trie(store, matched, size, config.shortest, config.occurrences, config.depth)

    return jax.vmap(one)(text.token, text.length)


def _start(
    config: SuffixConfig,
    params: Any,
    text: Text,
    target: TargetHead,
    root: jax.Array,
    rows: int,
) -> tuple[Proposal, Found]:
    trie = find_continuations(
        text,
        longest=config.longest,
        shortest=config.shortest,
        occurrences=config.occurrences,
        depth=config.depth,
    )
    if "store" in params:
        other = _find_in_store(config, text, params["store"]["token"])
        scores = [score_trie(one, _most_nodes(config, one)) for one in (other, trie)]
        better = scores[0] > scores[1]
        trie = jax.tree.map(
            lambda new, old: jnp.where(better.reshape(-1, *(1,) * (old.ndim - 1)), new, old),
            other,
            trie,
        )
    at = jnp.full((root.shape[0], rows), -1, jnp.int32)
    proposal = _propose(trie.token[:, :1], trie.count[:, :1])
    return proposal, Found(trie, _most_nodes(config, trie), at)


def _expand(
    params: Any,
    text: Text,
    found: Found,
    target: TargetHead,
    nodes: Nodes,
    first: jax.Array,
) -> tuple[Proposal, Found]:
    trie, depth = found.trie, found.trie.token.shape[1]

    def at_row(x: jax.Array, row: jax.Array) -> jax.Array:
        """Look up rows int32 [B, M] of x [B, D, R]."""
        return jnp.take_along_axis(x, jnp.clip(row, 0, depth - 1)[..., None], axis=1)

    row = nodes.depth - 1  # of the nodes themselves; their children stand one row below
    above = jnp.take_along_axis(found.at, nodes.source, axis=1)[..., None]
    stands = (at_row(trie.count, row) > 0) & (at_row(trie.token, row) == nodes.token[..., None])
    stands &= (row == 0)[..., None] | (at_row(trie.first, row - 1) == above)
    at = jnp.where(stands.any(-1), stands.argmax(-1), -2)
    below = (at_row(trie.first, row) == at[..., None]) & (nodes.depth < depth)[..., None]
    count = jnp.where(below, at_row(trie.count, row + 1), 0)
    own = jax.lax.dynamic_update_slice(found.at, at.astype(jnp.int32), (0, first))
    return _propose(at_row(trie.token, row + 1), count), found.replace(at=own)


def _propose(token: jax.Array, count: jax.Array) -> Proposal:
    """Propose tokens [B, M, R] by their counts; those of count 0 are not proposed."""
    logits = jnp.log(count.astype(jnp.float32))
    return Proposal(logits[:, :, None], tokens=token[:, :, None])


def _most_nodes(config: SuffixConfig, trie: Trie) -> jax.Array:
    """Return the tokens to draft at most, int32 [B]: alpha times the length of the match."""
    return jnp.floor(config.factor * trie.matched + 1e-6).astype(jnp.int32)
