"""SpecBlock's objective: cross-entropy on valid prefixes of chains of blocks, and a rank head.

Slot k of a block counts if the slots before it would have been accepted (the valid-prefix mask m
of equation 5). The loss is averaged for each slot over the cases that count, so that slots that are
rarely reached keep their weight. The defaults are those of the released code; the paper's equations
6 and 7 have `decay` 1 and `rank_loss` plain.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.rank_classes import RANK_LIMITS, score_classes, weigh_classes
from jaxspec.drafters.specblock.network import SpecBlockConfig

from ...loss.objective import LossOptions, sum_accuracies
from ...loss.terms import compute_slot_weights, gather
from .forward import draw_cuts
from .slots import SlotLosses, ahead_of, make_specblock_slot_losses

# Whether a batch trains the rank head, and the blocks after the first.
LATE = ("rank_on", "blocks_on")


@dataclasses.dataclass
class BlockOptions:
    """Options of SpecBlock's objective, in addition to `LossOptions`.

    Attributes:
      blocks: blocks in a chain in training; decoding may use another number.
      decay: ratio of each slot's weight to the previous slot's; 1 weighs all alike, as the paper
        does.
      rank_weight: weight of the rank head's loss.
      rank_loss: `ordinal` is the released code's: soft labels, more weight for rare and distant
        classes, and a slot counts if the classes before it were right. `plain` is the paper's
        cross-entropy under the mask m of the drafts; averaged for each slot and summed over slots,
        like the drafts' own.
      rank_from: training step from which the rank head is trained, see `late_batches`.
      blocks_from: training step from which the blocks after the first are trained. The released
        code begins both at once; in the paper only the rank head waits.
      valid_prefix: count a slot only if those before it would have been accepted; False is an
        ablation.
      teacher_top: number of the target's most probable tokens in the cross-entropy, not
        renormalised; None takes all.
      peers: see `training.drafters.specblock.forward.block_outputs`.
    """

    blocks: int = 3
    decay: float = 0.8
    rank_weight: float = 1.0
    rank_loss: Literal["ordinal", "plain"] = "ordinal"
    rank_from: int = 0
    blocks_from: int = 0
    valid_prefix: bool = True
    teacher_top: int | None = None
    peers: bool = False


def make_specblock_loss(
    config: SpecBlockConfig,
    target_config: TargetConfig,
    options: LossOptions,
    block: BlockOptions | None = None,
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`.

    Args:
      config: of the drafter.
      target_config: of the target. The target's variables are the loss's second argument; with a
        reduced draft vocabulary they have the collection `draft` with its ids.
      options: see `LossOptions`. `kind` must be `fkl`, and `gamma` and `anchor_chunk` are not used.
      block: see `BlockOptions`; None takes the defaults.

    Returns:
      The loss; `batch` is the one of `make_block_loss` and may also hold `cuts` (see `draw_cuts`)
      and the flags of `late_batches`. An anchor p is the pair (h_{p-1}, x_p). A slot counts if the
      token that it predicts is to be learnt and in the anchor's document. (The authors use the loss
      mask of the feature's token, two before the first predicted one.) `loss` averages over slots;
      a batch, or a part of one, has its number of rows as weight. The other names are `draft` and
      `rank`, the two terms of the loss; `accuracy_k` and `accept_length` of the first block, as in
      `make_block_loss`; `block_b_accuracy_k` of the blocks b from 2 on; `rank_recall_c` and
      `rank_precision_c` of each class in the first block.

    Raises:
      ValueError: an option is out of range, or SpecBlock cannot use it.
    """
    block = block or BlockOptions()
    _check(config, options, block)
    losses_of = make_specblock_slot_losses(
        config, target_config, options, top=block.teacher_top, peers=block.peers
    )

    def loss(params, target, batch):
        cuts = draw_cuts(batch, block.blocks - 1, config.slots)
        slots = losses_of(params, target, batch, cuts)
        paired = gather(batch["positions"], batch["anchors"]) > 0
        learnt = (
            compute_slot_weights(batch, block.blocks * config.slots + 1)[..., 1:] > 0
        ) & paired[..., None]
        draft, rank = block_losses(slots, learnt, cuts, block)
        rank_on, blocks_on = (
            batch[name].max() if name in batch else jnp.float32(1) for name in LATE
        )
        counted = jnp.where(jnp.arange(block.blocks) > 0, blocks_on, 1.0)
        draft = (counted[:, None] * draft * block.decay ** jnp.arange(config.slots)).sum()
        rank = block.rank_weight * rank_on * (counted * rank).sum()
        rows = jnp.float32(len(batch["anchors"]))
        terms = {"loss": draft + rank, "draft": draft, "rank": rank}
        return {name: (value * rows, rows) for name, value in terms.items()} | _figures(
            slots, learnt, cuts
        )

    return loss


def block_losses(
    slots: SlotLosses, learnt: jax.Array, cuts: jax.Array, block: BlockOptions
) -> tuple[jax.Array, jax.Array]:
    """Compute the cross-entropy float32 [blocks, K] of every slot, and the rank loss [blocks].

    Args:
      slots: losses of every anchor and slot.
      learnt: bool [B, A, blocks * K], whether the d-th token after the anchor counts.
      cuts: int32 [B, blocks - 1], see `draw_cuts`.
      block: options of the objective.
    """
    counted = _learnt_slots(learnt, cuts, slots.hit.shape[-1]) & slots.drafted
    reached = jnp.broadcast_to(counted[:1, ..., :1], counted.shape)
    prefix = reached & (_before(slots.hit) if block.valid_prefix else True)
    weight = (counted & prefix).astype(jnp.float32)
    values = jnp.where(weight > 0, slots.values, 0)
    draft = values.sum((1, 2)) / jnp.maximum(weight.sum((1, 2)), 1)
    if block.rank_loss == "plain":
        values = optax.softmax_cross_entropy_with_integer_labels(slots.ranks, slots.wanted)
        values = jnp.where(weight > 0, values, 0)
        return draft, (values.sum((1, 2)) / jnp.maximum(weight.sum((1, 2)), 1)).sum(-1)
    named = slots.ranks.argmax(-1)
    prefix = reached & (_before(named == slots.wanted) if block.valid_prefix else True)
    return draft, _ordinal_loss(slots, (counted & prefix).astype(jnp.float32))


def _ordinal_loss(slots: SlotLosses, weight: jax.Array) -> jax.Array:
    """Compute the rank head's loss [blocks], see `jaxspec.drafters.rank_classes`."""
    weight = weigh_classes(slots.wanted, weight, (1, 2), slots.ranks.shape[-1])
    values = score_classes(slots.ranks, slots.wanted)
    total = weight.sum((1, 2, 3))
    return jnp.where(weight > 0, values * weight, 0).sum((1, 2, 3)) / jnp.where(total > 0, total, 1)


def _learnt_slots(learnt: jax.Array, cuts: jax.Array, slots: int) -> jax.Array:
    """Take `learnt` [B, A, D] at the tokens that the slots predict: [blocks, B, A, K]."""
    tokens = learnt.swapaxes(1, 2)
    return jax.vmap(lambda index: gather(tokens, index).swapaxes(1, 2))(ahead_of(cuts, slots))


def _before(flags: jax.Array) -> jax.Array:
    """Tell for each slot of the last axis whether all slots before it are set."""
    return (
        jnp.cumprod(
            jnp.concatenate([jnp.ones_like(flags[..., :1]), flags[..., :-1]], axis=-1), axis=-1
        )
        > 0
    )


def _figures(
    slots: SlotLosses, learnt: jax.Array, cuts: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Sum up the reported figures other than the loss."""
    counted = _learnt_slots(learnt, cuts, slots.hit.shape[-1])
    figures = sum_accuracies(slots.right[0], counted[0])
    for b in range(1, len(counted)):
        accuracy = sum_accuracies(slots.right[b], counted[b])
        figures |= {
            f"block_{b + 1}_{name}": pair
            for name, pair in accuracy.items()
            if name != "accept_length"
        }
    usable = counted[0] & slots.drafted[0]
    named = slots.ranks[0].argmax(-1)
    wanted = slots.wanted[0]
    for c in range(slots.ranks.shape[-1]):
        both, is_wanted, is_named = (
            (usable & flags).sum(dtype=jnp.float32)
            for flags in ((wanted == c) & (named == c), wanted == c, named == c)
        )
        figures |= {f"rank_recall_{c}": (both, is_wanted), f"rank_precision_{c}": (both, is_named)}
    return figures


def late_batches(batches: Callable, block: BlockOptions) -> Callable:
    """Add flags float32 [B] to `batches` (see `training.run.loop.fit`): the names of `LATE`, each 1
    from its step on.
    """
    starts = dict(zip(LATE, (block.rank_from, block.blocks_from), strict=True))

    def with_flags(step):
        batch = batches(step)
        rows = len(batch["anchors"])
        flags = {name: np.full(rows, step >= start, np.float32) for name, start in starts.items()}
        return batch | flags

    return with_flags


def _check(config: SpecBlockConfig, options: LossOptions, block: BlockOptions) -> None:
    if options.kind != "fkl" or options.gamma is not None:
        raise ValueError(
            "SpecBlock learns the target's distribution and has its own decay: "
            "leave kind at fkl and gamma at None"
        )
    if options.temperature <= 0:
        raise ValueError(f"loss temperature is {options.temperature}: give a number above 0")
    if block.blocks < 1 or (block.teacher_top is not None and block.teacher_top < 1):
        raise ValueError(
            f"blocks is {block.blocks} and teacher_top is {block.teacher_top}: give at least 1"
        )
    if not 0 < block.decay <= 1:
        raise ValueError(f"decay is {block.decay}: give a number above 0, 1 at most")
    if config.rank_classes != len(RANK_LIMITS) + 1:
        raise ValueError(
            f"rank_classes is {config.rank_classes}: give {len(RANK_LIMITS) + 1} classes"
        )
