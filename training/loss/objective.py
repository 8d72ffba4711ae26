"""What the objectives of drafters share: their options, the target's side, and the accuracies."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig
from jaxspec.targets.head import select_columns
from jaxspec.targets.transformer import Transformer

from ..data.draft_vocab import find_slots
from .teacher import TeacherStates, compute_teacher_states
from .terms import cross_entropy, forward_kl, reverse_kl


@dataclasses.dataclass
class LossOptions:
    """Options of the objective.

    Attributes:
      kind: `fkl` is KL(target || drafter), `rkl` its reverse, `ce` cross-entropy on the text's own
        tokens.
      temperature: of both softmaxes in the divergences.
      gamma: decay length of the slot weights in slots; None weights all slots alike.
      tile: number of rows whose logits exist at a time: 2 x tile x vocabulary numbers in float32.
      anchor_chunk: number of anchors of a row whose activations exist at a time, see
        `training.drafters.dflash.forward`; None keeps all.
      dtype: dtype of the drafter's computations. Master weights, softmaxes and sums stay float32.
    """

    kind: Literal["fkl", "rkl", "ce"] = "fkl"
    temperature: float = 1.0
    gamma: float | None = None
    tile: int = 1024
    anchor_chunk: int | None = None
    dtype: Literal["float32", "bfloat16"] = "float32"


def make_per_row(target_config: TargetConfig, options: LossOptions, reduced: bool) -> Callable:
    """Make (hidden, rows, target) -> (losses, (text's token is most probable, row counts)).

    With a reduced draft vocabulary and `best` among the rows, the target's logits are computed for
    the draft vocabulary alone.
    """
    teacher_of = make_teacher_logits(target_config, reduced)

    def per_row(hidden, rows, target):
        logits = draft_logits(target_config, target, hidden, reduced)
        best, wanted, teacher = logits.argmax(-1), rows["label"], None
        if options.kind != "ce":
            teacher, wanted = teacher_of(rows, target, hidden.dtype)
        drafted = jnp.ones(best.shape, bool)
        if reduced:
            ids = target["draft"]["ids"]
            best, (wanted, drafted) = ids[best], find_slots(ids, wanted)
        if options.kind == "ce":
            values = cross_entropy(logits, wanted)
        else:
            divergence = forward_kl if options.kind == "fkl" else reverse_kl
            values = divergence(logits, teacher, options.temperature)
        return values, (best == rows["label"], drafted)

    return per_row


def draft_logits(target_config: TargetConfig, target, hidden: jax.Array, reduced: bool):
    """Project hidden states [t, E] to float32 logits over the draft vocabulary, or the target's."""
    if reduced:
        logits = hidden @ target["draft"]["lm_head"].astype(hidden.dtype)
    else:
        cast = cast_leaves(target, hidden.dtype)
        logits = Transformer(target_config).apply(cast, hidden, method="logits")
    return logits.astype(jnp.float32)


def make_teacher_logits(target_config: TargetConfig, reduced: bool) -> Callable:
    """Make (rows, target, dtype) -> (the target's logits [t, D], its most probable tokens [t]).

    The logits are those of the draft vocabulary. With `best` among the rows, they alone are
    computed.
    """
    model = Transformer(target_config)

    def teacher_logits(rows, target, dtype):
        states = rows["teacher"].astype(dtype)
        if reduced and "best" in rows:
            columns = select_columns(target, target_config, target["draft"]["ids"])
            return states @ columns.astype(dtype), rows["best"]
        logits = model.apply(target, states, method="logits")
        return logits[:, target["draft"]["ids"]] if reduced else logits, logits.argmax(-1)

    return teacher_logits


class DrafterInputs(NamedTuple):
    """What a drafter reads in a training step.

    Attributes:
      states: the target's, in their own dtype.
      weights: variables {"params"} of the drafter, in the dtype of its computations.
      embedding: [V, E], the target's embedding table, likewise.
      features: [B, S, F], `states.features`, likewise.
    """

    states: TeacherStates
    weights: dict[str, Any]
    embedding: jax.Array
    features: jax.Array


def get_drafter_inputs(
    config, target_config: TargetConfig, options: LossOptions, params, target, batch
) -> DrafterInputs:
    """Return what the drafter with `config` reads, from the arguments of a loss."""
    states = get_target_states(config, target_config, target, batch)
    dtype = jnp.dtype(options.dtype)
    return DrafterInputs(
        states,
        {"params": cast_leaves(params["params"], dtype)},
        target["params"]["embedding"].astype(dtype),
        states.features.astype(dtype),
    )


def cast_leaves(tree, dtype):
    """Convert the arrays of a pytree to `dtype`."""
    return jax.tree.map(lambda leaf: leaf.astype(dtype), tree)


def get_target_states(config, target_config: TargetConfig, target, batch) -> TeacherStates:
    """Return the states of a batch: those that it holds (a feature cache), or the target's."""
    if "features" in batch:
        return TeacherStates(batch["features"], batch["hidden"], batch.get("best"))
    return compute_teacher_states(target_config, target, config.feature_layers, batch)


def sum_accuracies(right: jax.Array, counted: jax.Array) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Sum up accuracy by slot and the simulated acceptance length, from bool [B, A, depth]."""

    def total(flags):
        return flags.sum((0, 1), dtype=jnp.float32)

    hits, slots = total(right & counted), total(counted)
    by_slot = {f"accuracy_{k + 1}": (hits[k], slots[k]) for k in range(right.shape[-1])}
    whole = counted.all(-1)
    length = 1 + jnp.cumprod(right, axis=-1).sum(-1)
    return by_slot | {
        "accept_length": (jnp.where(whole, length, 0).sum(dtype=jnp.float32), total(whole))
    }
