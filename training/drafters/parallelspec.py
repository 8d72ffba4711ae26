"""Train ParallelSpec: many groups of masks in one pass ("group-wise", Xiao et al. 2024).

Each anchor is a group. Its pair and its masks attend to the text's pairs before the anchor and to
earlier members of their own group, never to another group. Decoding does the same, and both run
`ParallelSpec.__call__`. All groups of a row share one copy of the context's keys and values. Two
things differ from the paper: groups are at random anchors instead of evenly spaced, and divergence
and slot weights can be chosen.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.core.state import KVCache
from jaxspec.drafters.parallelspec.network import ParallelSpec, ParallelSpecConfig

from ..loss.objective import LossOptions, get_drafter_inputs
from ..loss.slot_losses import (
    check_options,
    compute_weights,
    make_slot_losses,
    map_anchors,
    sum_losses,
)
from ..loss.terms import gather
from .eagle3.model import make_wide_config
from .first_weights import draw_weights
from .model_options import ModelOptions
from .presets import LLAMA31_8B, make_large_head_preset, make_mini_head_preset
from .record import TrainingRecord


def make_parallelspec_config(
    options: ModelOptions, target: TargetConfig, tokenizer: str | None = None
) -> ParallelSpecConfig:
    """Make the config of the drafter for `target`; ValueError: a size is out of range."""
    return make_wide_config(ParallelSpecConfig, options, target, num_layers=1, slots=options.slots)


def make_parallelspec_loss(
    config: ParallelSpecConfig, target_config: TargetConfig, options: LossOptions
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`. Slot k (from 0) at anchor p reads
    the pair (h_{p-1}, x_p) and the masks up to its own, and learns token p + 1 + k. Anchors at the
    beginning of a document do not count.

    Raises:
      ValueError: an option is out of range.
    """
    check_options(options)
    slot_losses = make_slot_losses(target_config, options)

    def loss(params, target, batch):
        states, *inputs, features = get_drafter_inputs(
            config, target_config, options, params, target, batch
        )
        hidden = draft_hidden(config, *inputs, batch, features, options.anchor_chunk)
        found = slot_losses(hidden, params["params"]["lm_head"], target, batch, states)
        return sum_losses(found, compute_weights(batch, config.slots, 1, options.gamma))

    return loss


def draft_hidden(
    config: ParallelSpecConfig, params, embedding, batch, features, chunk: int | None = None
) -> jax.Array:
    """Draft at the anchors; return hidden states [B, A, K, E] after the final norm.

    Args:
      config: of the drafter.
      params: variables of `ParallelSpec(config)`.
      embedding: [V, E], the target's embedding table.
      batch: `tokens` and `positions` int32 [B, S], positions from 0 in each document, and `anchors`
        int32 [B, A]. Ignore the output at an anchor at position 0.
      features: [B, S, len(feature_layers) * Et], of the target.
      chunk: anchors of each row computed together, and recomputed for the gradient; None computes
        all at once and keeps everything.
    """
    model, positions = ParallelSpec(config), batch["positions"]
    fused = model.apply(params, features, method="fuse")
    # No token follows the last column, so its pair is wrong; no anchor reads it.
    following = jnp.take(embedding, jnp.roll(batch["tokens"], -1, axis=1), axis=0)
    k, v = model.apply(params, following, fused, positions, method="context_kv")
    context = filled((k,), (v,), None)
    pairs = jnp.maximum(batch["anchors"] - 1, 0)

    def draft(pair):
        index, place, token, feature = pair
        return model.apply(
            params, token, feature, place, context.replace(length=place), index - place
        )

    columns = (pairs, *(gather(x, pairs) for x in (positions, following, fused)))
    return map_anchors(draft, columns, chunk)


def init_parallelspec(config: ParallelSpecConfig, seed: int, head: jax.Array | None = None):
    """Initialise float32 variables of `ParallelSpec(config)`, see `draw_weights`."""

    def touch(model: ParallelSpec, features, token, position):
        fused = model.fuse(features)
        keys = jnp.zeros((1, 1, config.num_kv_heads, 1, config.head_dim))
        return model.logits(model(token, fused, position, KVCache((keys,), (keys,), position)))

    features = jnp.zeros((1, len(config.feature_layers) * config.target_hidden_size))
    token, position = jnp.zeros((1, config.hidden_size)), jnp.zeros(1, jnp.int32)
    return draw_weights(ParallelSpec(config), seed, (features, token, position), touch, head)


PARALLELSPEC = TrainingRecord(
    name="parallelspec",
    what="A ParallelSpec drafter",
    config=make_parallelspec_config,
    init=init_parallelspec,
    loss=lambda config, target, loss, own: make_parallelspec_loss(config, target, loss),
    presets={
        "parallelspec": make_mini_head_preset(
            "parallelspec", dict(draft_vocab=2048, ffn_size=1216, slots=7)
        ),
        # The optimizer is EAGLE-3's: ours.
        "parallelspec-llama-3.1-8b": make_large_head_preset("parallelspec", LLAMA31_8B, slots=4),
    },
)
