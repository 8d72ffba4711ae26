"""DFlash2 (Inco AI and z-lab 2026): DFlash with convolutions inside the block, and a selector that
scores pairs of neighbouring candidates.

Around every attention and feed-forward layer, each row of the block is mixed with the rows before
it, by kernels that depend on the row. The selector adds to a candidate's logit how well it follows
the token before it: <A[previous] * (P h), C[candidate]>.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import flax.linen as nn
import jax
import jax.numpy as jnp

from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig
from jaxspec.drafters.dflash.shapes import init_backbone
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.linear import INIT, Linear
from pallas_kernels.reference import add_parts


@dataclasses.dataclass(frozen=True, kw_only=True)
class DFlash2Config(BlockDrafterConfig):
    """A DFlash2 drafter: DFlash with convolutions inside the block and a selector of candidates.

    Attributes:
      conv_group_size: neighbouring channels that share the dynamic part of a convolution's kernel.
      conv_kernel_size: taps of a convolution: the row itself and the rows before it.
      selector_rank: width r of the selector's codebooks.
      selector_top_k: candidates of a slot.
      output_multiplier: factor of the target's logits, before the softcap.
      logit_softcap: bound c of the logits, c * tanh(logits / c); None for none.
      embedding_scale: factor of the embeddings of the block.
    """

    conv_group_size: int = 16
    conv_kernel_size: int = 2
    selector_rank: int = 256
    selector_top_k: int = 16
    output_multiplier: float = 1.0
    logit_softcap: float | None = None
    embedding_scale: float = 1.0

    def __post_init__(self) -> None:
        if self.hidden_size % self.conv_group_size:
            raise ValueError(
                f"conv_group_size is {self.conv_group_size}, which does not divide the hidden size "
                f"{self.hidden_size}"
            )
        if self.vocab_size < self.selector_top_k:
            raise ValueError(
                f"selector_top_k is {self.selector_top_k}, more than the {self.vocab_size} tokens"
            )
        if self.draft_vocab_size is not None:
            raise ValueError("DFlash2 has no reduced draft vocabulary: leave draft_vocab_size out")

    @property
    def groups(self) -> int:
        """Return the number of groups of channels, G."""
        return self.hidden_size // self.conv_group_size


class DynamicConv(nn.Module):
    """Two causal depthwise convolutions over the rows of a block: of a layer's input and output.

    The kernel of a row is a trained one plus a product of the layer's normed input, which is shared
    by a group of channels.
    """

    config: DFlash2Config

    def setup(self):
        c = self.config
        self.base_kernel = self.param(
            "base_kernel", _identity, (2, c.conv_kernel_size, c.hidden_size)
        )
        self.kernel_projection = Linear(2 * c.conv_kernel_size * c.groups)

    def prepare(self, x: jax.Array) -> tuple[jax.Array, jax.Array]:
        """Convolve a layer's normed input [B, T, E].

        Returns:
          (the convolved input [B, T, E], what `finish` adds to the kernel of the output
          [B, T, taps, G]).
        """
        c = self.config
        dynamic = self.kernel_projection(x)
        dynamic = dynamic.reshape(*x.shape[:-1], 2, c.conv_kernel_size, c.groups)
        return convolve(x, self.base_kernel[0], dynamic[..., 0, :, :]), dynamic[..., 1, :, :]

    def finish(self, x: jax.Array, dynamic: jax.Array) -> jax.Array:
        """Convolve a layer's output [B, T, E]."""
        return convolve(x, self.base_kernel[1], dynamic)


def convolve(x: jax.Array, base: jax.Array, dynamic: jax.Array) -> jax.Array:
    """Convolve the rows of a block; rows before it count as zeros.

    Args:
      x: [B, T, E].
      base: [taps, E]; tap t multiplies the row t places before.
      dynamic: [B, T, taps, G], added to `base` for all channels of a group.

    Returns:
      [B, T, E].
    """
    taps, (rows, width) = base.shape[0], x.shape[1:]
    kernel = base.astype(x.dtype) + jnp.repeat(dynamic, width // dynamic.shape[-1], axis=-1)
    before = jnp.pad(x, ((0, 0), (taps - 1, 0), (0, 0)))
    shifted = [before[:, taps - 1 - tap : taps - 1 - tap + rows] for tap in range(taps)]
    return sum(kernel[:, :, tap] * row for tap, row in enumerate(shifted))


class ConvolvedLayer(DecoderLayer):
    """A decoder layer with a `DynamicConv` around attention and feed-forward."""

    def setup(self):
        super().setup()
        self.attention_conv = DynamicConv(self.config)
        self.mlp_conv = DynamicConv(self.config)

    def between_norms(self, x, normed, rope, positions, mask, prefix, window=None, earlier=None):
        """See `DecoderLayer.between_norms`."""
        row, dynamic = self.attention_conv.prepare(normed)
        attended, new_kv = self.attention.in_parts(
            row, rope, positions, mask, prefix, window, earlier
        )
        attended = self.attention_conv.finish(add_parts(attended, x.dtype), dynamic)
        x, normed = self.mlp_norm.add_normalize(x, attended[None], prefix is not None)
        row, dynamic = self.mlp_conv.prepare(normed)
        out = self.mlp_conv.finish(self.mlp(row), dynamic)
        return x, out[None], new_kv


class Selector(nn.Module):
    """Scores of candidates after the token before them."""

    config: DFlash2Config

    def setup(self):
        shape = self.config.vocab_size, self.config.selector_rank
        self.predecessor = self.param("predecessor", INIT, shape)
        self.successor = self.param("successor", INIT, shape)
        self.hidden_projection = Linear(self.config.selector_rank)

    def __call__(self, previous: jax.Array, hidden: jax.Array, candidates: jax.Array) -> jax.Array:
        """Score candidates.

        Args:
          previous: int32 [...], the token before each slot.
          hidden: [..., E], hidden states of the slots.
          candidates: int32 [..., C].

        Returns:
          float32 [..., C], to be added to the candidates' logits.
        """
        context = self.predecessor[previous] * self.hidden_projection(hidden)
        terms = context[..., None, :].astype(jnp.float32) * self.successor[candidates]
        return terms.sum(-1)


class DFlash2(BlockDrafter):
    """The backbone with convolutions, and the selector."""

    config: DFlash2Config

    def setup(self):
        super().setup()
        self.selector = Selector(self.config)

    def make_layer(self) -> DecoderLayer:
        """Make a layer with convolutions."""
        return ConvolvedLayer(self.config)

    def select(self, previous: jax.Array, hidden: jax.Array, candidates: jax.Array) -> jax.Array:
        """See `Selector`."""
        return self.selector(previous, hidden, candidates)


def init_variables(config: DFlash2Config) -> dict[str, Any]:
    """Initialize the variables of `DFlash2(config)`, for their shapes."""

    def touch(drafter: DFlash2, row: jax.Array, hidden: jax.Array) -> None:
        drafter.select(row, hidden, row[..., None])

    return init_backbone(DFlash2(config), config, touch)


def _identity(key: jax.Array, shape: tuple[int, ...]) -> jax.Array:
    """Return kernels that pass rows on as they are."""
    return jnp.zeros(shape).at[:, 0].set(1)
