"""Prompt lookup (Saxena 2023): find the text's last tokens earlier in the text, and propose the
tokens that followed them there.

It has no weights and runs no forward. A learned drafter must beat it.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from jaxspec.core.config import DrafterConfig
from jaxspec.drafters.base import Committed, Drafter, Proposal, TargetHead
from jaxspec.drafters.suffix.text import Text, append_text, last_tokens, make_text, match_lengths


@dataclasses.dataclass(frozen=True, kw_only=True)
class PromptLookupConfig(DrafterConfig):
    """Prompt lookup (Saxena 2023): find the latest earlier occurrence of the text's last few tokens
    and propose the tokens that followed it. It has no weights.

    Attributes:
      depth: number of tokens that are copied.
      longest: tokens of the longest n-gram that is looked up; longer ones are preferred.
      shortest: tokens of the shortest n-gram that is looked up.
    """

    depth: int = 8
    longest: int = 3
    shortest: int = 1


def make_lookup_drafter(config: PromptLookupConfig) -> Drafter:
    """Make the drafter. Its one step proposes one chain of up to `config.depth` tokens, or none if
    nothing is found.
    """

    def init(batch: int, capacity: int, dtype: Any) -> Text:
        return make_text(batch, capacity)

    def absorb(params: Any, text: Text, target: TargetHead, new: Committed) -> Text:
        return append_text(text, new)

    def start(
        params: Any, text: Text, target: TargetHead, root: jax.Array, rows: int
    ) -> tuple[Proposal, None]:
        depth = min(config.depth, rows)
        begin, matched = jax.vmap(lambda token, length: find_latest(token, length, config.longest))(
            text.token, text.length
        )
        begin = jnp.where(matched >= config.shortest, begin, text.length)
        index = begin[:, None] + jnp.arange(depth)
        token = jnp.take_along_axis(text.token, jnp.minimum(index, text.token.shape[1] - 1), axis=1)
        token = jnp.where(index < text.length[:, None], token, -1)
        logits = jnp.where(token[..., None] == jnp.arange(config.vocab_size), 0.0, -jnp.inf)
        return Proposal(logits[:, None]), None

    return Drafter((), config.depth, config.depth, init, absorb, start, choices=1)


def find_latest(token: jax.Array, length: jax.Array, longest: int) -> tuple[jax.Array, jax.Array]:
    """Find the latest occurrence of the longest n-gram that ends the text and occurs earlier in it.

    Args:
      token: int32 [S], the text and padding.
      length: int32 [], number of tokens of the text.
      longest: most tokens of the n-gram.

    Returns:
      (int32 [], index of the token after the occurrence, `length` if there is none; int32 [],
      tokens of the n-gram, 0 if there is none).
    """
    size = token.shape[0]
    place = jnp.arange(size)
    matched = match_lengths(token, last_tokens(token, length, longest), length)
    matched = jnp.where(place < length - 1, matched, 0)
    best = jnp.max(matched * size + place)  # the longest, and the latest of these
    found = best // size
    return jnp.where(found > 0, best % size + 1, length), found
