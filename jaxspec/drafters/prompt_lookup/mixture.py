"""Mix looked-up tokens into the distributions of another drafter.

An answer often repeats its prompt or itself. There, copied tokens are right more often than those
of a small drafter, and elsewhere less often. So a copied token gets a share of the drafter's
distribution, as large as copies were right so far after matches of its length, where they were the
drafter's own first choice, or where they were not. Builders and acceptance see one distribution,
and need not know. The text after a match of n tokens whose first copied token is right is a match
of n + 1 tokens.

Copies come from the latest occurrence of the longest match (prompt lookup), or follow the most
frequent continuation of its occurrences (`suffix`).

Related: SuffixDecoding's hybrid (Oliaro et al. 2024, arXiv 2411.04975) drafts a round either by
lookup or by a learned drafter, whichever scores higher.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.core.state import Nodes
from jaxspec.drafters.base import Committed, Drafter, Proposal, TargetHead
from jaxspec.drafters.prompt_lookup.drafter import find_latest
from jaxspec.drafters.suffix.drafter import SuffixConfig, find_continuations
from jaxspec.drafters.suffix.text import Text, append_text, make_text
from jaxspec.drafters.suffix.trie import find_likeliest

# Tokens of the longest match that is told from longer ones.
LONGEST = 8
# Copied tokens that the first guess of their rates counts for. After n tokens, n^2 / (n^2 + c) of
# them are right, with one c where the drafter prefers another token and one where it does not. The
# guess is low: a share that is too large costs a strong drafter more than it gives a weak one.
GUESS_COUNT, GUESS_OTHER, GUESS_SAME = 4.0, 100.0, 0.5


class Copies(flax.struct.PyTreeNode):
    """What lookup proposes after the root, and how often it was right.

    Rates are of 2 x `LONGEST` kinds of copied tokens: after matches of 1 to `LONGEST` tokens, first
    those that are not the drafter's first choice.

    Attributes:
      text: the text so far, the root included.
      token: int32 [B, D], copied tokens; -1 for none.
      matched: int32 [B], tokens of the match, up to `LONGEST`; 0 without one.
      chosen: int32 [B, D], the drafter's first choices at the same places; -1 where unknown.
      right: float32 [B, 2 x LONGEST], copied tokens that were right, a first guess included.
      count: float32 [B, 2 x LONGEST], copied tokens that were judged, likewise.
    """

    text: Text
    token: jax.Array
    matched: jax.Array
    chosen: jax.Array
    right: jax.Array
    count: jax.Array


class Mixed(flax.struct.PyTreeNode):
    """The state of the other drafter, and the copies."""

    own: Any
    copies: Copies


class Scratch(NamedTuple):
    """The other drafter's scratch, and its first choices int32 [B, D], -1 where unknown."""

    own: Any
    chosen: jax.Array


def mix_lookup(drafter: Drafter, source: bool | str = True) -> Drafter:
    """Make the drafter that proposes a mixture of `drafter` and looked-up tokens.

    It takes the steps of `drafter`, but gives no `look_ahead` and no `conditions`: what lookup adds
    depends on more than a node's depth and token.

    Args:
      source: True for prompt lookup, or `suffix`.
    """
    look_up = _SOURCES[source]

    def init(batch: int, capacity: int, dtype: Any) -> Mixed:
        own = drafter.init(batch, capacity, dtype)
        return Mixed(own, init_copies(batch, capacity, drafter.depth))

    def absorb(params: Any, state: Mixed, target: TargetHead, new: Committed) -> Mixed:
        own = drafter.absorb(params, state.own, target, new)
        return Mixed(own, update_copies(state.copies, new, look_up))

    def start(
        params: Any, state: Mixed, target: TargetHead, root: jax.Array, rows: int, **block: Any
    ) -> tuple[Proposal, Scratch]:
        proposal, own = drafter.start(params, state.own, target, root, rows, **block)
        depth = jnp.zeros((root.shape[0], 1), jnp.int32)
        mixed, first = _mix(proposal, state.copies, depth, depth == 0)
        after = state.copies.token.shape[1] - first.shape[2]
        chosen = jnp.pad(first[:, 0], ((0, 0), (0, max(after, 0))), constant_values=-1)
        return mixed, Scratch(own, chosen[:, : state.copies.token.shape[1]])

    def expand(
        params: Any,
        state: Mixed,
        scratch: Scratch,
        target: TargetHead,
        nodes: Nodes,
        first: jax.Array,
    ) -> tuple[Proposal, Scratch]:
        assert drafter.expand is not None
        proposal, own = drafter.expand(params, state.own, scratch.own, target, nodes, first)
        # A node whose token is the copied one of its depth is most likely on the copied path.
        copied = jnp.take_along_axis(state.copies.token, nodes.depth - 1, axis=1, mode="clip")
        follows = (copied == nodes.token) & (nodes.depth <= drafter.depth)
        mixed, _ = _mix(proposal, state.copies, nodes.depth, follows)
        return mixed, scratch._replace(own=own)

    def remember(state: Mixed, scratch: Scratch) -> Mixed:
        own = drafter.remember(state.own, scratch.own) if drafter.remember else state.own
        return Mixed(own, state.copies.replace(chosen=scratch.chosen))

    return drafter._replace(
        init=init,
        absorb=absorb,
        start=start,
        expand=None if drafter.expand is None else expand,
        look_ahead=None,
        conditions=None,
        remember=remember,
    )


def init_copies(batch: int, capacity: int, depth: int) -> Copies:
    """Make the state before any token."""
    length = jnp.arange(1, LONGEST + 1)
    guess = jnp.concatenate([length**2 / (length**2 + c) for c in (GUESS_OTHER, GUESS_SAME)])
    return Copies(
        make_text(batch, capacity),
        jnp.full((batch, depth), -1, jnp.int32),
        jnp.zeros(batch, jnp.int32),
        jnp.full((batch, depth), -1, jnp.int32),
        GUESS_COUNT * jnp.broadcast_to(guess, (batch, 2 * LONGEST)),
        jnp.full((batch, 2 * LONGEST), GUESS_COUNT),
    )


def copy_latest(text: Text, depth: int) -> tuple[jax.Array, jax.Array]:
    """Copy what followed the latest occurrence of the longest match.

    Returns:
      (`Copies.token`, `Copies.matched`).
    """
    begin, matched = jax.vmap(lambda token, length: find_latest(token, length, LONGEST))(
        text.token, text.length
    )
    index = begin[:, None] + jnp.arange(depth)
    token = jnp.take_along_axis(text.token, index, axis=1, mode="clip")
    token = jnp.where((index < text.length[:, None]) & (matched > 0)[:, None], token, -1)
    return token, matched


def copy_likeliest(text: Text, depth: int) -> tuple[jax.Array, jax.Array]:
    """Copy the most frequent continuation of the longest match, see `copy_latest`."""
    trie = find_continuations(
        text,
        longest=SuffixConfig.longest,
        shortest=SuffixConfig.shortest,
        occurrences=SuffixConfig.occurrences,
        depth=depth,
    )
    return find_likeliest(trie), jnp.minimum(trie.matched, LONGEST)


_SOURCES: Mapping[bool | str, Callable[[Text, int], tuple[jax.Array, jax.Array]]] = (
    MappingProxyType({True: copy_latest, "suffix": copy_likeliest})
)
# What copies may come from, besides prompt lookup.
SOURCES = tuple(name for name in _SOURCES if isinstance(name, str))


def update_copies(
    copies: Copies,
    new: Committed,
    look_up: Callable[[Text, int], tuple[jax.Array, jax.Array]] = copy_latest,
) -> Copies:
    """Judge the copies by the committed tokens, and look the last ones up."""
    right, count = _judge(copies, new)
    text = append_text(copies.text, new)
    token, matched = look_up(text, copies.token.shape[1])
    return Copies(text, token, matched, jnp.full_like(token, -1), right, count)


def _judge(copies: Copies, new: Committed) -> tuple[jax.Array, jax.Array]:
    """Count the copies up to the first wrong one, where the drafter's choice is known."""
    slot = jnp.arange(min(copies.token.shape[1], new.following.shape[1]))
    copied, chosen = copies.token[:, : len(slot)], copies.chosen[:, : len(slot)]
    known = (copied >= 0) & (chosen >= 0) & (slot < new.count[:, None])
    right = jnp.cumprod(known & (copied == new.following[:, : len(slot)]), axis=1)
    before = jnp.pad(right, ((0, 0), (1, 0)), constant_values=1)[:, :-1]
    kind = _kind(copies.matched[:, None] + slot, copied == chosen)
    kinds = jax.nn.one_hot(kind, 2 * LONGEST)
    judged = known & (before > 0)
    return (
        copies.right + jnp.sum(kinds * right[..., None], axis=1),
        copies.count + jnp.sum(kinds * judged[..., None], axis=1),
    )


def _kind(length: jax.Array, same: jax.Array) -> jax.Array:
    """Return the kind of copied tokens after matches of `length` tokens, at least 1."""
    return jnp.clip(length, 1, LONGEST) - 1 + LONGEST * same


def _mix(
    proposal: Proposal, copies: Copies, depth: jax.Array, follows: jax.Array
) -> tuple[Proposal, jax.Array]:
    """Give copied tokens their share of the distributions.

    Args:
      proposal: logits [B, M, K, V].
      depth: int32 [B, M], depth of the nodes that it follows.
      follows: bool [B, M], whether the path to a node is the copied one.

    Returns:
      (the mixture; int32 [B, M, K], the first choices of `proposal`).
    """
    logits = proposal.logits
    batch, _, slots, vocab = logits.shape
    first = jnp.argmax(logits, axis=-1)
    place = (depth[..., None] + jnp.arange(slots)).reshape(batch, -1)  # depth - 1 of the tokens
    token = jnp.take_along_axis(copies.token, place, axis=1, mode="clip")
    token = jnp.where(place < copies.token.shape[1], token, -1).reshape(first.shape)
    length = (copies.matched[:, None] + place).reshape(first.shape)
    kind = _kind(length, token == first).reshape(batch, -1)
    right, count = (jnp.take_along_axis(x, kind, axis=1) for x in (copies.right, copies.count))
    log_odds = (jnp.log(right) - jnp.log(count - right)).reshape(first.shape)
    total = jax.nn.logsumexp(logits.astype(jnp.float32), axis=-1)
    # Compare rather than scatter: the vocabulary may be split over devices.
    copied = jnp.arange(vocab) == token[..., None]
    own = jnp.max(jnp.where(copied, logits, -jnp.inf), axis=-1)
    raised = jnp.logaddexp(own.astype(jnp.float32), total + log_odds)[..., None]
    mixed = jnp.where(copied & follows[..., None, None], raised.astype(logits.dtype), logits)
    return proposal._replace(logits=mixed), first
