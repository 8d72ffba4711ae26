"""DSpark (DeepSeek 2026): a parallel backbone, a low-rank head over the previous token, and a head
that tells how likely a drafted token is to be accepted.

The backbone is DFlash's. It gives hidden states h_k and logits U_k of all slots at once, and
knows nothing of the tokens that are drafted. The Markov head adds what it lacks: the logits of slot
k after token x are U_k + W2 latent(W1[x], h_k), where the latent vector has r components.
"""

from __future__ import annotations

import dataclasses

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.core.state import KVCache
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig
from jaxspec.targets.linear import INIT, Linear

HEADS = ("vanilla", "gated", "rnn")


@dataclasses.dataclass(frozen=True, kw_only=True)
class DSparkConfig(BlockDrafterConfig):
    """A DSpark drafter: DFlash's backbone, a Markov head over the previous token, and a confidence
    head.

    Attributes:
      markov_rank: width r of the Markov head; 0 for none, which is DeepSpec's own DFlash.
      markov_head: `vanilla`, `gated` or `rnn`, see `MarkovHead`.
      confidence: whether there is a confidence head.
      confidence_with_markov: whether it reads the previous token's row of the Markov head too.
      sample_from_anchor: whether the anchor's slot proposes the first token, so that a block of
        `block_size` slots drafts as many tokens. False for the slots of DFlash and JetSpec, where
        the anchor proposes nothing.
      confidence_temperatures: divisors of the confidence head's logits, one per position of a
        draft, fitted to measured acceptance (`python -m benchmarks confidence`); () leaves them as
        they are.
    """

    markov_rank: int = 256
    markov_head: str = "vanilla"
    confidence: bool = True
    confidence_with_markov: bool = True
    sample_from_anchor: bool = True
    confidence_temperatures: tuple[float, ...] = ()

    def __post_init__(self) -> None:
        if self.depth < 1:
            raise ValueError(f"block_size is {self.block_size}, which drafts no token: give more")
        if self.markov_head not in HEADS:
            raise ValueError(
                f"unknown Markov head {self.markov_head!r}: {choose_one(self.markov_head, HEADS)}"
            )
        if self.markov_rank < 0:
            raise ValueError(f"markov_rank is {self.markov_rank}: give 0 (no head) or more")
        if any(not temperature > 0 for temperature in self.confidence_temperatures):
            raise ValueError(
                f"confidence_temperatures are {list(self.confidence_temperatures)}: "
                "give numbers above 0"
            )
        if self.confidence and self.confidence_with_markov and not self.markov_rank:
            raise ValueError(
                "the confidence head cannot read a Markov head of rank 0: "
                "set confidence_with_markov to false"
            )

    @property
    def first_slot(self) -> int:
        """Return the first slot of a block that proposes a token."""
        return 0 if self.sample_from_anchor else 1

    @property
    def depth(self) -> int:
        """Return the longest path that can be drafted from one block."""
        return self.block_size - self.first_slot


class MarkovHead(nn.Module):
    """The head over the previous token: `vanilla`, `gated` or `rnn`.

    * vanilla: the latent vector is the token's row of W1.
    * gated: that row times a gate, which the hidden state and the row decide.
    * rnn: a gated recurrent state along the path. The latent vector comes from the state before the
      token, its row and the hidden state.
    """

    config: DSparkConfig

    def setup(self):
        c, rank = self.config, self.config.markov_rank
        self.w1 = self.param("w1", INIT, (c.vocab_size, rank))
        self.w2 = Linear(c.draft_vocab_size or c.vocab_size)
        if c.markov_head == "gated":
            self.gate = Linear(rank, bias=True)
        elif c.markov_head == "rnn":
            self.joint = Linear(3 * rank, bias=True)

    def embed(self, previous: jax.Array) -> jax.Array:
        """Look up the rows [..., r] of tokens int32 [...], which are ids of the target."""
        return self.w1[previous]

    def latent(
        self, previous: jax.Array, hidden: jax.Array, state: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Compute the latent vectors of slots.

        Args:
          previous: int32 [...], the token before each slot.
          hidden: [..., E], the slots' hidden states.
          state: [..., r], the recurrent state before the token; None for zeros, and for other heads
            than `rnn`.

        Returns:
          (latent [..., r], the state after the token [..., r], or None without a recurrent state).
        """
        row = self.embed(previous)
        if self.config.markov_head == "vanilla":
            return row, None
        if self.config.markov_head == "gated":
            gate = self.gate(jnp.concatenate([hidden, row], axis=-1))
            return jax.nn.sigmoid(gate) * row, None
        if state is None:
            state = jnp.zeros_like(row)
        joint = self.joint(jnp.concatenate([state, row, hidden], axis=-1))
        gate, candidate, output = jnp.split(joint, 3, axis=-1)
        keep = jax.nn.sigmoid(gate)
        return jnp.tanh(output), keep * state + (1 - keep) * jnp.tanh(candidate)

    def latent_of_blocks(self, previous: jax.Array, hidden: jax.Array) -> jax.Array:
        """Compute the latent vectors [..., K, r] of whole blocks whose tokens are known.

        Args:
          previous: int32 [..., K], the token before each slot; the anchor is the first.
          hidden: [..., K, E].
        """
        if self.config.markov_head != "rnn":
            return self.latent(previous, hidden)[0]
        state, latents = None, []
        for k in range(previous.shape[-1]):
            latent, state = self.latent(previous[..., k], hidden[..., k, :], state)
            latents.append(latent)
        return jnp.stack(latents, axis=-2)

    def bias(self, latent: jax.Array) -> jax.Array:
        """Return what latent vectors [..., r] add to the logits, [..., D] of the draft vocabulary."""
        return self.w2(latent)

    def bias_of(self, latent: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return what latent vectors [..., M, r] add to the logits of some tokens alone.

        Args:
          tokens: int32 [..., N], indices into the draft vocabulary.

        Returns:
          [..., M, N].
        """
        kernel = self.w2.get_variable("params", "kernel")
        return jnp.einsum("...mr,r...n->...mn", latent, kernel[:, tokens])


class ConfidenceHead(nn.Module):
    """The logit that a drafted token is accepted, given that the tokens before it were."""

    @nn.compact
    def __call__(self, hidden: jax.Array, row: jax.Array | None) -> jax.Array:
        """Judge slots.

        Args:
          hidden: [..., E], hidden states of the slots.
          row: [..., r], the previous tokens' rows of W1; None if the head does not read them.

        Returns:
          float32 [...], logits.
        """
        read = hidden if row is None else jnp.concatenate([hidden, row], axis=-1)
        return Linear(1, bias=True, name="proj")(read)[..., 0].astype(jnp.float32)


class DSpark(nn.Module):
    """Backbone and heads; embeddings and the output projection are the target's."""

    config: DSparkConfig

    def setup(self):
        self.backbone = BlockDrafter(self.config)
        if self.config.markov_rank:
            self.markov = MarkovHead(self.config)
        if self.config.confidence:
            self.confidence_head = ConfidenceHead()

    def context_kv(self, features: jax.Array, positions: jax.Array) -> tuple[jax.Array, jax.Array]:
        """See `BlockDrafter.context_kv`."""
        return self.backbone.context_kv(features, positions)

    def __call__(
        self,
        block: jax.Array,
        positions: jax.Array,
        cache: KVCache,
        first: jax.Array | None = None,
        size: jax.Array | None = None,
    ) -> jax.Array:
        """Return hidden states [B, T, E] of a block, see `BlockDrafter`."""
        return self.backbone(block, positions, cache, first, size)

    def step_bias(
        self, previous: jax.Array, hidden: jax.Array, state: jax.Array | None = None
    ) -> tuple[jax.Array, jax.Array | None]:
        """Return (what the Markov head adds to the logits, [..., D]; the state after the token),
        see `MarkovHead.latent`.
        """
        latent, state = self.markov.latent(previous, hidden, state)
        return self.markov.bias(latent), state

    def bias_between(self, previous: jax.Array, hidden: jax.Array, tokens: jax.Array) -> jax.Array:
        """Return what the Markov head adds to the logits of `tokens` alone, see
        `MarkovHead.latent` and `MarkovHead.bias_of`.
        """
        return self.markov.bias_of(self.markov.latent(previous, hidden)[0], tokens)

    def block_bias(self, previous: jax.Array, hidden: jax.Array) -> jax.Array:
        """Return what the Markov head adds to the logits of whole blocks, [..., K, D], see
        `MarkovHead.latent_of_blocks`.
        """
        return self.markov.bias(self.markov.latent_of_blocks(previous, hidden))

    def confidence(self, previous: jax.Array, hidden: jax.Array) -> jax.Array:
        """Return logits float32 [...] that the token drafted at a slot is accepted.

        Args:
          previous: int32 [...], the token before each slot.
          hidden: [..., E], hidden states of the slots.
        """
        row = self.markov.embed(previous) if self.config.confidence_with_markov else None
        return self.confidence_head(hidden, row)
