"""SpecBlock's objective: chains of blocks with cross-entropy on valid prefixes, and the rank head
learnt along with them.

Slot k of a block counts where the slots before it would have been accepted (the valid-prefix mask),
and a slot's rank class where the classes before it were right. Averages are per slot over what
counts, so that rarely reached slots are not drowned.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.specblock.config import SpecBlockConfig
from jaxspec.drafters.specblock.network import SpecBlock, rank_features, slot_positions
from training.drafter_loss import LossOptions, sum_accuracies
from training.losses import compute_slot_weights, gather
from training.specblock_forward import draw_cuts
from training.specblock_slots import RANK_LIMITS, SlotLosses, ahead_of, make_specblock_slot_losses

_RARE = 10  # slots of a class beyond which its weight falls


@dataclasses.dataclass
class BlockOptions:
    """Options of SpecBlock's objective beside `LossOptions`.

    Attributes:
      blocks: that follow each other in training; decoding may use another number.
      decay: weight of a slot by that of the one before.
      rank_weight: of the rank head's loss.
      rank_from: step from which the rank head and the blocks after the first are learnt, see
        `late_batches`.
      valid_prefix: slots count only where those before them would have been accepted (False: an
        ablation).
      teacher_top: the target's most probable tokens that the cross-entropy is taken over, not
        renormalised; None: all.
      peers: see `training.specblock_forward.block_outputs`.
    """

    blocks: int = 3
    decay: float = 0.8
    rank_weight: float = 1.0
    rank_from: int = 0
    valid_prefix: bool = True
    teacher_top: int | None = None
    peers: bool = False


def make_specblock_loss(
    config: SpecBlockConfig,
    target_config: TargetConfig,
    options: LossOptions,
    block: BlockOptions | None = None,
) -> Callable:
    """`loss(params, target, batch) -> {name: (numerator, denominator)}`, as
    `training.drafter_loss.make_loss` does.

    Args:
      config: of the drafter.
      target_config: of the target, whose variables are the loss's second argument, with the
        collection `draft` and the ids in it where the draft vocabulary is reduced.
      options: see `LossOptions`; only `fkl` is defined, and `gamma` and `anchor_chunk` have no use
        here.
      block: see `BlockOptions`; None takes the defaults.

    Returns:
      The loss, of `batch` as `make_loss` takes it, which may hold `cuts` (see `draw_cuts`) and
      `late` (see `late_batches`). An anchor p stands for the pair (h_{p-1}, x_p); a slot counts
      where the token that it predicts is to be learnt and in the anchor's document. (The authors
      take the loss mask of the feature's token, two before the first predicted one.) `loss`
      averages over slots, and a batch or part of one weighs as many times as it has rows. Other
      names: `draft` and `rank`, its two terms; `accuracy_k` and `accept_length` of the first block
      as of `make_loss`; `block_b_accuracy_k` of the blocks b from 2 on; `rank_recall_c` and
      `rank_precision_c` of each class in the first block.

    Raises:
      ValueError: an option out of range, or that SpecBlock has no use for.
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
        late = batch["late"].max() if "late" in batch else jnp.float32(1)
        counted = jnp.where(jnp.arange(block.blocks) > 0, late, 1.0)
        draft = (counted[:, None] * draft * block.decay ** jnp.arange(config.slots)).sum()
        rank = block.rank_weight * late * rank.sum()
        rows = jnp.float32(len(batch["anchors"]))
        terms = {"loss": draft + rank, "draft": draft, "rank": rank}
        return {name: (value * rows, rows) for name, value in terms.items()} | _figures(
            slots, learnt, cuts
        )

    return loss


def block_losses(
    slots: SlotLosses, learnt: jax.Array, cuts: jax.Array, block: BlockOptions
) -> tuple[jax.Array, jax.Array]:
    """Cross-entropy float32 [blocks, K] of every slot, and the rank head's loss [blocks].

    Args:
      learnt: bool [B, A, blocks * K], whether the d-th token after the anchor counts.
      cuts: int32 [B, blocks - 1].
    """
    counted = _learnt_slots(learnt, cuts, slots.hit.shape[-1]) & slots.drafted
    reached = jnp.broadcast_to(counted[:1, ..., :1], counted.shape)
    prefix = reached & (_before(slots.hit) if block.valid_prefix else True)
    weight = (counted & prefix).astype(jnp.float32)
    values = jnp.where(weight > 0, slots.values, 0)
    draft = values.sum((1, 2)) / jnp.maximum(weight.sum((1, 2)), 1)
    named = slots.ranks.argmax(-1)
    prefix = reached & (_before(named == slots.wanted) if block.valid_prefix else True)
    return draft, _rank_loss(slots, named, (counted & prefix).astype(jnp.float32))


def _rank_loss(slots: SlotLosses, named: jax.Array, weight: jax.Array) -> jax.Array:
    """Cross-entropy [blocks] with ordinal soft labels: a class named too low costs more than one
    named too high.
    """
    classes = slots.ranks.shape[-1]
    away = np.arange(classes)[:, None] - np.arange(classes)  # [wanted, named]
    distance = 1.0 + np.abs(away) + np.maximum(away, 0)
    soft = distance**-2.0 / (distance**-2.0).sum(-1, keepdims=True)
    counts = (jax.nn.one_hot(slots.wanted, classes) * weight[..., None]).sum(
        (1, 2)
    )  # [blocks, K, classes]
    rare = jnp.minimum(1.0, _RARE / jnp.maximum(counts, 1))
    weight = (
        weight * jnp.take_along_axis(rare[:, None, None], slots.wanted[..., None], axis=-1)[..., 0]
    )
    values = -(jnp.asarray(soft, jnp.float32)[slots.wanted] * jax.nn.log_softmax(slots.ranks)).sum(
        -1
    )
    values = values * jnp.asarray(distance, jnp.float32)[slots.wanted, named]
    total = weight.sum((1, 2, 3))
    return jnp.where(weight > 0, values * weight, 0).sum((1, 2, 3)) / jnp.where(total > 0, total, 1)


def _learnt_slots(learnt: jax.Array, cuts: jax.Array, slots: int) -> jax.Array:
    """`learnt` [B, A, D] at the tokens that the slots of each block predict, [blocks, B, A, K]."""
    tokens = learnt.swapaxes(1, 2)
    return jax.vmap(lambda index: gather(tokens, index).swapaxes(1, 2))(ahead_of(cuts, slots))


def _before(flags: jax.Array) -> jax.Array:
    """Whether all slots before each one are set, along the last axis."""
    return (
        jnp.cumprod(
            jnp.concatenate([jnp.ones_like(flags[..., :1]), flags[..., :-1]], axis=-1), axis=-1
        )
        > 0
    )


def _figures(
    slots: SlotLosses, learnt: jax.Array, cuts: jax.Array
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Sums of what is reported beside the loss."""
    counted = _learnt_slots(learnt, cuts, slots.hit.shape[-1])
    figures = sum_accuracies(slots.right[0], counted[0])
    for b in range(1, len(counted)):
        accuracy = sum_accuracies(slots.right[b], counted[b])
        figures |= {
            f"block_{b + 1}_{name}": pair
            for name, pair in accuracy.items()
            if name != "accept_length"
        }
    usable, named, wanted = (
        counted[0] & slots.drafted[0],
        slots.ranks[0].argmax(-1),
        slots.wanted[0],
    )
    for c in range(slots.ranks.shape[-1]):
        both, is_wanted, is_named = (
            (usable & flags).sum(dtype=jnp.float32)
            for flags in ((wanted == c) & (named == c), wanted == c, named == c)
        )
        figures |= {f"rank_recall_{c}": (both, is_wanted), f"rank_precision_{c}": (both, is_named)}
    return figures


def late_batches(batches: Callable, block: BlockOptions) -> Callable:
    """`batches` (see `training.loop.fit`) with `late` float32 [B]: whether the step is past
    `rank_from`.
    """

    def with_late(step):
        batch = batches(step)
        return batch | {"late": np.full(len(batch["anchors"]), step >= block.rank_from, np.float32)}

    return with_late


def heads_only(params):
    """A pytree of bools, True for the output projection and the rank head: what light adaptation
    trains.
    """

    def is_head(path, _):
        return any(
            getattr(key, "key", None) in ("lm_head", "rank_inner", "rank_outer") for key in path
        )

    return jax.tree_util.tree_map_with_path(is_head, params)


def init_specblock(config: SpecBlockConfig, seed: int):
    """Float32 variables {"params"}: projections uniform within 1 / sqrt(inputs), queries normal
    (0.02), norms 1.

    That is the authors' start. The shift replaces the state rather than adding to it, so
    projections must not start small.
    """
    rows = jnp.zeros((1, 1, config.hidden_size))

    def touch(module: SpecBlock, features, tokens):
        hidden, _, _ = module(
            module.condition(features),
            tokens,
            slot_positions(jnp.zeros((1, 1), jnp.int32), config.slots),
        )
        return module.rank(
            module.final(hidden),
            rank_features(module.logits(module.final(hidden)), config.rank_top),
        )

    def init(key):
        features = jnp.zeros((1, 1, len(config.feature_layers) * config.target_hidden_size))
        params = SpecBlock(config).init(key, features, rows, method=touch)
        leaves, tree = jax.tree_util.tree_flatten_with_path(params)
        keys = jax.random.split(jax.random.fold_in(key, 1), len(leaves))
        return jax.tree.unflatten(
            tree, [_draw(key, path, leaf) for key, (path, leaf) in zip(keys, leaves, strict=True)]
        )

    return jax.jit(init)(jax.random.key(seed))


def _draw(key, path, leaf: jax.Array) -> jax.Array:
    if path[-1].key not in ("kernel", "fuse", "lm_head"):
        return leaf
    bound = leaf.shape[0] ** -0.5
    return jax.random.uniform(key, leaf.shape, leaf.dtype, -bound, bound)


def _check(config: SpecBlockConfig, options: LossOptions, block: BlockOptions) -> None:
    if options.kind != "fkl" or options.gamma is not None:
        raise ValueError(
            "SpecBlock learns from the target's distribution and has a decay of its own: leave kind fkl, gamma None"
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
            f"rank_classes is {config.rank_classes}: ranks fall into {len(RANK_LIMITS) + 1} classes in training"
        )
