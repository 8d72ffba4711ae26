"""Per-slot losses of SpecBlock's chains, a tile of rows at a time to bound the memory of logits."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.rank_classes import classify_rank
from jaxspec.drafters.specblock.network import SpecBlock, SpecBlockConfig, rank_features
from jaxspec.targets.transformer import Transformer

from ...data.draft_vocab import find_slots
from ...loss.objective import LossOptions, get_drafter_inputs
from ...loss.terms import gather
from .forward import block_outputs


class SlotLosses(NamedTuple):
    """Results of the blocks at each anchor and slot, [blocks, B, A, K].

    Attributes:
      values: float32, cross-entropy with the target's distribution over the draft vocabulary, in
        nats.
      hit: bool, whether the drafter's most probable token is the target's.
      right: bool, whether the drafter's most probable token is the text's.
      drafted: bool, whether the target's most probable token is in the draft vocabulary.
      wanted: int32, the rank class of that token.
      ranks: float32 [..., rank_classes], the rank head's logits.
    """

    values: jax.Array
    hit: jax.Array
    right: jax.Array
    drafted: jax.Array
    wanted: jax.Array
    ranks: jax.Array


def make_specblock_slot_losses(
    config: SpecBlockConfig,
    target_config: TargetConfig,
    options: LossOptions,
    *,
    top: int | None = None,
    peers: bool = False,
) -> Callable[..., SlotLosses]:
    """Make (params, target, batch, cuts [B, blocks - 1]) -> `SlotLosses`.

    It is differentiable with respect to `params`.

    Args:
      config: of the drafter.
      target_config: of the target.
      options: `temperature`, `tile` and `dtype` are read.
      top: number of the target's most probable tokens in the cross-entropy, not renormalised; None
        takes all.
      peers: see `block_outputs`.
    """
    model, drafter = Transformer(target_config), SpecBlock(config)

    def one(row, shared):
        hidden, label, teacher = row
        normed = drafter.apply(shared["drafter"], hidden, method="final")
        logits = (normed @ shared["lm_head"].astype(normed.dtype)).astype(jnp.float32)
        frozen, fixed = jax.lax.stop_gradient((normed, logits))
        ranks = drafter.apply(
            shared["drafter"], frozen, rank_features(fixed, config.rank_top), method="rank"
        )
        teacher = model.apply(
            shared["target"], teacher.astype(hidden.dtype), method="logits"
        ).astype(jnp.float32)
        best, ids = teacher.argmax(-1), shared["ids"]
        slot, drafted = find_slots(ids, best)
        teacher = teacher if config.draft_vocab_size is None else teacher[ids]
        probability = jax.nn.softmax(teacher / options.temperature)
        if top is not None:
            probability = keep_top(probability, top)
        value = -(probability * jax.nn.log_softmax(logits / options.temperature)).sum()
        choice, rank = fixed.argmax(-1), (fixed > fixed[slot]).sum()
        wanted = classify_rank(rank)
        return SlotLosses(
            value, choice == slot, ids[choice] == label, drafted, wanted, ranks.astype(jnp.float32)
        )

    def losses_of(params, target, batch, cuts):
        states, weights, embedding, features = get_drafter_inputs(
            config, target_config, options, params, target, batch
        )
        hidden = block_outputs(config, weights, embedding, batch, features, cuts, peers=peers)
        last = batch["tokens"].shape[1] - 1
        before = jnp.minimum(
            batch["anchors"][..., None] + ahead_of(cuts, config.slots)[:, :, None], last
        )  # [blocks, B, A, K]
        after = jnp.minimum(before + 1, last)
        label = jax.vmap(gather, (None, 0))(batch["tokens"], after)
        teacher = jax.vmap(gather, (None, 0))(states.hidden, before)
        ids = (
            jnp.arange(config.vocab_size)
            if config.draft_vocab_size is None
            else target["draft"]["ids"]
        )
        # Convert the projection inside the tile, so that its gradient is summed over tiles in
        # float32.
        shared = {
            "drafter": weights,
            "lm_head": params["params"]["lm_head"],
            "ids": ids,
            "target": {"params": target["params"]},
        }
        rows = jax.tree.map(
            lambda x: x.reshape(before.size, *x.shape[4:]), (hidden, label, teacher)
        )
        found = jax.lax.map(
            jax.checkpoint(lambda row: one(row, shared)),
            rows,
            batch_size=min(options.tile, before.size),
        )
        return jax.tree.map(lambda x: x.reshape(*before.shape, *x.shape[1:]), found)

    return losses_of


def keep_top(probability: jax.Array, top: int) -> jax.Array:
    """Set all but the `top` largest entries of `probability` [V] to zero.

    Exactly `top` entries are kept; among ties, those with the lowest ids.
    """
    values, slots = jax.lax.top_k(probability, min(top, len(probability)))
    return jnp.zeros_like(probability).at[slots].set(values)


def ahead_of(cuts: jax.Array, slots: int) -> jax.Array:
    """Compute how many tokens after the anchor's next one each slot's predicted token comes.

    Args:
      cuts: int32 [B, C].
      slots: of a block.

    Returns:
      int32 [1 + C, B, K].
    """
    return jnp.cumsum(jnp.pad(cuts, ((0, 0), (1, 0))), axis=1).T[..., None] + jnp.arange(slots)
