"""The objective of DSpark drafters: many blocks per row, with heads that read the text's own
tokens.

Source: deepseek-ai/DeepSpec. Ours are packed rows, a reduced draft vocabulary, an optional KL
divergence, and a backbone that may be frozen.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dspark.network import DSpark, DSparkConfig, MarkovHead

from ...data.draft_vocab import find_slots
from ...loss.objective import (
    LossOptions,
    cast_leaves,
    draft_logits,
    get_target_states,
    make_teacher_logits,
    sum_accuracies,
)
from ...loss.slot_losses import check_options
from ...loss.terms import gather
from ...loss.tiles import sum_tiled_rows
from ..dflash.forward import block_hidden
from .model import BACKBONE
from .slot_losses import (
    accept_rate,
    compute_block_weights,
    compute_slot_losses,
    confidence_loss,
    gather_block_tokens,
    sum_accept_length,
)


@dataclasses.dataclass
class DSparkOptions:
    """Weights of DSpark's losses, and what is trained.

    Attributes:
      ce: weight of the cross-entropy on the text's own tokens.
      l1: weight of the L1 distance to the target's distribution.
      kl: weight of KL(target || drafter), this project's objective of other block drafters.
      confidence: weight of the confidence head's loss; not read if there is no such head.
      freeze_backbone: train the heads alone, on the backbone of `--init`. No gradient of the
        backbone is computed.
      after_prompt: no block begins at the last token of a prompt, as in DeepSpec.
    """

    ce: float = 0.1
    l1: float = 0.9
    kl: float = 0.0
    confidence: float = 1.0
    freeze_backbone: bool = False
    after_prompt: bool = False


def make_dspark_loss(
    config: DSparkConfig,
    target_config: TargetConfig,
    options: LossOptions,
    own: DSparkOptions | None = None,
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`. Heads read the text's tokens (teacher
    forcing), so `accept_length` is that of a chain which drafts from its own tokens: it counts the
    slots before the first wrong one. Other names: `ce`, `l1` and `confidence`, per slot, and
    `accept_length_sampled` (DeepSpec's tau), the tokens per block that rejection sampling is
    expected to commit at temperature 1, bonus included.

    If the frozen variables hold `backbone`, it is read from there, and `params` holds the heads
    alone.

    All terms share the denominator of `loss`, the weights of all slots. With a reduced draft
    vocabulary both distributions are over its tokens. The cross-entropy of a slot then is 0 if the
    text's token is not among them. If the target's most probable token is not, `l1` and `kl` are 0,
    and the confidence head learns that nothing is accepted.

    Raises:
      ValueError: an option is out of range.
    """
    own = own or DSparkOptions()
    _check(config, options, own)
    per_row = make_dspark_row(target_config, own, reduced=config.draft_vocab_size is not None)

    def loss(params, target, batch):
        states = get_target_states(config, target_config, target, batch)
        hidden, heads = _forward(config, options, params["params"], target, batch, states)
        weights = compute_block_weights(batch, config.depth, options.gamma)
        before, previous, labels = gather_block_tokens(batch, config.depth)
        rows = {"label": labels, "weight": weights, "teacher": gather(states.hidden, before)}
        if states.best is not None:
            rows["best"] = gather(states.best, before)
        inputs, trained = {"hidden": hidden}, {}
        if config.markov_rank:
            inputs["latent"] = MarkovHead(config).apply(
                {"params": heads["markov"]}, previous, hidden, method="latent_of_blocks"
            )
            # In float32 up to the tile, so that its gradient adds up over tiles in float32.
            trained = params["params"]["markov"]["w2"]
        if BACKBONE in target:  # not an input, so that no gradient is computed for it
            rows["hidden"] = inputs.pop("hidden")
        flat = jax.tree.map(lambda array: array.reshape(-1, *array.shape[3:]), (inputs, rows))
        total, found = sum_tiled_rows(per_row, options.tile, trained, *flat, target)
        found = {name: array.reshape(weights.shape) for name, array in found.items()}
        accept = jnp.where(found["in_teacher"], accept_rate(found["l1"]), 0)
        sums = {
            "ce": _sum(found["ce"], jnp.where(found["in_text"], weights, 0)),
            "l1": _sum(found["l1"], jnp.where(found["in_teacher"], weights, 0)),
            "accept_length_sampled": sum_accept_length(accept, weights > 0),
        }
        if config.confidence:
            judged = DSpark(config).apply({"params": heads}, previous, hidden, method="confidence")
            sums["confidence"] = _sum(confidence_loss(judged, accept), weights)
            total += own.confidence * sums["confidence"][0]
        accuracies = sum_accuracies(found["right"], weights > 0)
        return {"loss": (total, weights.sum()), **sums, **accuracies}

    return loss


def _forward(config: DSparkConfig, options: LossOptions, params, target, batch, states):
    """Run the backbone: (hidden [B, A, K, E] of slots that propose tokens, the heads' weights)."""
    dtype = jnp.dtype(options.dtype)
    backbone = target[BACKBONE] if BACKBONE in target else params[BACKBONE]
    hidden = block_hidden(
        config,
        {"params": cast_leaves(backbone, dtype)},
        target["params"]["embedding"].astype(dtype),
        batch,
        states.features.astype(dtype),
        chunk=options.anchor_chunk,
    )
    heads = {
        name: cast_leaves(leaves, dtype) for name, leaves in params.items() if name != BACKBONE
    }
    return hidden[:, :, config.first_slot :], heads


def make_dspark_row(target_config: TargetConfig, own: DSparkOptions, reduced: bool) -> Callable:
    """Make the `per_row` of `training.loss.tiles.sum_tiled_rows`: the weighted losses of slots.

    Trained is `kernel` [r, D] of the Markov head, or nothing. A slot has `hidden` [E], `latent` [r]
    if there is a head, `label`, `teacher`, `weight` and perhaps `best`. The extras are the losses,
    and bools: `right`, the most probable token is the text's; `in_text` and `in_teacher`, the
    text's token and the target's most probable one can be drafted.
    """
    teacher_of = make_teacher_logits(target_config, reduced)

    def per_row(trained, inputs, rows, target):
        rows = rows | inputs
        counts = rows["weight"] > 0
        # What does not count may hold anything, and must not reach the gradient.
        rows |= {
            name: jnp.where(counts[:, None], rows[name], 0)
            for name in ("hidden", "latent", "teacher")
            if name in rows
        }
        logits = draft_logits(target_config, target, rows["hidden"], reduced)
        if trained:
            latent = rows["latent"]
            logits += (latent @ trained["kernel"].astype(latent.dtype)).astype(jnp.float32)
        teacher, wanted = teacher_of(rows, target, rows["hidden"].dtype)
        best, label = logits.argmax(-1), rows["label"]
        in_text = in_teacher = jnp.ones(best.shape, bool)
        if reduced:
            ids = target["draft"]["ids"]
            best, (label, in_text) = ids[best], find_slots(ids, label)
            in_teacher = find_slots(ids, wanted)[1]
        found = compute_slot_losses(logits, teacher, label)
        values = own.ce * jnp.where(in_text, found.ce, 0)
        values += jnp.where(in_teacher, own.l1 * found.l1, 0)
        if own.kl:
            values += jnp.where(in_teacher, own.kl * found.kl, 0)
        flags = {"right": best == rows["label"], "in_text": in_text, "in_teacher": in_teacher}
        return values * rows["weight"], {"ce": found.ce, "l1": found.l1} | flags

    return per_row


def _sum(values: jax.Array, weights: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Return (weighted sum, sum of the weights); values without weight may be anything."""
    return jnp.where(weights > 0, values * weights, 0).sum(), weights.sum()


def _check(config: DSparkConfig, options: LossOptions, own: DSparkOptions) -> None:
    check_options(options)
    if own.freeze_backbone and not (config.markov_rank or config.confidence):
        raise ValueError(
            "the backbone is frozen, and there is no head to train: give --model.markov-rank"
        )
    if options.kind != "fkl" or options.temperature != 1:
        raise ValueError(
            "dspark weighs losses of its own at temperature 1: leave kind and temperature, "
            "and set --method.dspark.ce, .l1, .kl and .confidence"
        )
    weights = (own.ce, own.l1, own.kl, own.confidence)
    if min(weights) < 0 or not any(weights[:3]):
        raise ValueError(
            f"the weights of ce, l1, kl and confidence are {weights}: give none below 0, and one "
            "of the first three above it"
        )
