"""Losses of drafters that propose K tokens at an anchor and train their own output projection.

Logits are computed for a tile of rows at a time.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from jaxspec.core.config import TargetConfig

from .objective import LossOptions, make_per_row, sum_accuracies
from .teacher import TeacherStates
from .terms import compute_slot_weights, gather


def check_options(options: LossOptions) -> None:
    """Check that temperature and decay length are above 0.

    Raises:
      ValueError: one of them is not.
    """
    for name, value in (("loss temperature", options.temperature), ("gamma", options.gamma)):
        if value is not None and value <= 0:
            raise ValueError(
                f"{name} is {value}: give a number above 0"
                + (", or None" if name == "gamma" else "")
            )


def make_slot_losses(target_config: TargetConfig, options: LossOptions) -> Callable:
    """Make a function (hidden, heads, target, batch, states) -> (values, right, drafted).

    Its arguments are `hidden` [B, A, K, E], the inputs of the output projection, where slot k
    proposes the token k + 1 places after the anchor; `heads` [E, D], or [K, E, D] with one per
    slot; and `target`, `batch` as for the loss. Its results are [B, A, K] each: `values` are the
    divergences over the draft vocabulary in nats; `right` says whether the most probable token is
    the text's; `drafted` says whether the slot can count, because the target's most probable token
    (for `ce`, the text's) is in the draft vocabulary. Logits of `options.tile` rows exist at a
    time, and are recomputed for the gradient.
    """
    per_row = make_per_row(target_config, options, reduced=True)

    def slot_losses(hidden, heads, target, batch, states: TeacherStates):
        slots = hidden.shape[2]
        rows = gather_rows(batch, states, slots, with_teacher=options.kind != "ce")
        whole = jnp.arange(target_config.vocab_size, dtype=jnp.int32)
        ids = target["draft"]["ids"] if "draft" in target else whole
        each = (hidden, rows)
        if heads.ndim == 3:  # one projection per slot: move slots to the front
            each = jax.tree.map(lambda array: jnp.moveaxis(array, 2, 0), each)
        flat = jax.tree.map(
            lambda array: array.reshape(len(heads) if heads.ndim == 3 else 1, -1, *array.shape[3:]),
            each,
        )

        def one_head(group):
            head, rows_of_head = group
            # The projection stays in float32 up to the tile, so that its gradient adds up over
            # tiles in float32.
            shared = {"params": target["params"], "draft": {"lm_head": head, "ids": ids}}

            def one(row):
                hidden, rows = jax.tree.map(lambda array: array[None], row)
                values, flags = per_row(hidden, rows, shared)
                return jax.tree.map(lambda array: array[0], (values, *flags))

            return jax.lax.map(
                jax.checkpoint(one), rows_of_head, batch_size=min(options.tile, flat[0].shape[1])
            )

        found = jax.lax.map(one_head, (heads if heads.ndim == 3 else heads[None], flat))
        if heads.ndim == 3:
            return tuple(
                jnp.moveaxis(array.reshape(slots, *hidden.shape[:2]), 0, 2) for array in found
            )
        return tuple(array.reshape(hidden.shape[:3]) for array in found)

    return slot_losses


def gather_rows(batch, states: TeacherStates, slots: int, with_teacher: bool) -> dict:
    """Gather what slot k of each anchor learns, of the token k + 1 places after it.

    Returns:
      `label` int32 [B, A, K]; and with the teacher `teacher` [B, A, K, E], the target's hidden
      state before that token, and `best` int32 [B, A, K] if it was computed.
    """
    before = batch["anchors"][..., None] + jnp.arange(slots)
    before = jnp.minimum(before, batch["tokens"].shape[1] - 2)
    rows = {"label": gather(batch["tokens"], before + 1)}
    if with_teacher:
        rows["teacher"] = gather(states.hidden, before)
        if states.best is not None:
            rows["best"] = gather(states.best, before)
    return rows


def compute_weights(batch, slots: int, history: int, gamma: float | None) -> jax.Array:
    """Compute weights float32 [B, A, K], see `terms.compute_slot_weights`.

    They are 0 at anchors with fewer than `history` tokens before them.
    """
    enough = gather(batch["positions"], batch["anchors"]) >= history
    return jnp.where(
        enough[..., None], compute_slot_weights(batch, slots + 1, gamma=gamma)[..., 1:], 0
    )


def sum_losses(
    found, weights: jax.Array, metric_weights: jax.Array | None = None
) -> dict[str, tuple[jax.Array, jax.Array]]:
    """Sum up the loss in nats per slot, and the accuracies of `objective.sum_accuracies`.

    Args:
      found: from `make_slot_losses`.
      weights: [B, A, K].
      metric_weights: [B, A, K] for the accuracies (default: `weights`).

    Returns:
      {name: (numerator, denominator)}.
    """
    values, right, drafted = found
    counted = jnp.where(drafted, weights, 0)
    values = jnp.where(counted > 0, values, 0)
    return {
        "loss": ((values * counted).sum(), counted.sum()),
        **sum_accuracies(right, (weights if metric_weights is None else metric_weights) > 0),
    }


def map_anchors(function: Callable, columns, chunk: int | None) -> jax.Array:
    """Map a function over all anchors.

    Args:
      function: takes one anchor's columns.
      columns: pytree of [B, A, ...].
      chunk: number of anchors at a time, recomputed for the gradient; None for all at once.

    Returns:
      [B, A, ...].
    """
    columns = jax.tree.map(lambda array: array.swapaxes(0, 1), columns)
    out = (
        jax.vmap(function)(columns)
        if chunk is None
        else jax.lax.map(jax.checkpoint(function), columns, batch_size=chunk)
    )
    return out.swapaxes(0, 1)
