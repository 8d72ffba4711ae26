"""GRIFFIN's loss: the next feature and the next token, in passes over the drafter's own outputs.

A later pass counts a row only if the true tokens were among the drafter's best in the passes before
(token-alignable training): where they were not, decoding would have stopped there.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.griffin.network import GriffinConfig

from ...loss.objective import LossOptions, draft_logits, get_drafter_inputs, sum_accuracies
from ...loss.tiles import map_tiled_rows
from .forward import Pairs, Passes, run_passes

_TINY = 1e-5


@dataclasses.dataclass
class GriffinOptions:
    """GRIFFIN's objective; the weights are the authors'.

    Attributes:
      passes: forward passes n. 1 is the authors' first stage; a later one starts from the drafter
        of the stage before, with more passes.
      regression: weight of the smooth L1 distance of `regress` from the next feature.
      cross_entropy: weight of the cross-entropy with the target's distribution.
      top: weight of the cross-entropy over the target's `top_tokens` most probable tokens alone,
        beside it; the authors' first stage has none.
      top_tokens: number of these tokens.
      aligned: a row is aligned if the true token is among so many of the drafter's best.
      noise: width of the uniform noise on the features that pass 0 reads; of a text of S tokens it
        is noise * 512 / S, as in EAGLE.
      counted: which token of a row t must be to be learnt: the `predicted` one, t + 2, or that of
        the `feature`, t, as in the published code.
      unmasked: attend as the published stages with several passes do, whose attention has no mask,
        see `training.drafters.griffin.forward`.
    """

    passes: int = 3
    regression: float = 1.0
    cross_entropy: float = 0.1
    top: float = 0.5
    top_tokens: int = 10
    aligned: int = 3
    noise: float = 0.2
    counted: Literal["predicted", "feature"] = "predicted"
    unmasked: bool = False


class Learnt(NamedTuple):
    """What rows learn.

    Attributes:
      features: [B, S, E], of the next token.
      truth: int32 [B, S], the token that the row predicts; -1 if the text has none.
      counted: bool [B, S], rows with a loss.
    """

    features: jax.Array
    truth: jax.Array
    counted: jax.Array


class PassLosses(NamedTuple):
    """Losses of n passes, float32 [n] each, and flags of their rows, bool [n, B, S].

    Attributes:
      loss: the weighted sum of the three terms.
      regression, cross_entropy, top: the terms, means over the counted rows.
      aligned: rows that later passes count, see `align_rows`.
      right: rows whose most probable token is the true one.
    """

    loss: jax.Array
    regression: jax.Array
    cross_entropy: jax.Array
    top: jax.Array
    aligned: jax.Array
    right: jax.Array


def make_griffin_loss(
    config: GriffinConfig, target_config: TargetConfig, options: LossOptions, own: GriffinOptions
) -> Callable:
    """Make `loss(params, target, batch) -> {name: (numerator, denominator)}`.

    The interface is that of `training.drafters.dflash.loss`, without anchors: every row counts. Of
    `options`, `tile` and `dtype` are read.

    Every pass is averaged over its own rows and all are added, as the authors' gradients are (their
    paper divides by the number of passes). A batch in parts averages each part by itself, as each of
    the authors' GPUs does. `loss` is that sum, and so are its terms `regression`, `cross_entropy`
    and `top`. `accuracy_k` is of pass k - 1, k - 1 rows later.

    Raises:
      ValueError: a size is out of range, or GRIFFIN cannot use one of the options.
    """
    _check(options, own)

    def loss(params, target, batch):
        _, weights, embedding, features = get_drafter_inputs(
            config, target_config, options, params, target, batch
        )
        pairs, learnt = make_rows(batch, embedding, features, own)
        found = run_passes(config, weights, pairs, own.passes, own.unmasked)
        sums = score_passes(target_config, target, found, learnt, options.tile, own)
        total = learnt.counted.sum(dtype=jnp.float32)
        named = ("loss", "regression", "cross_entropy", "top")
        means = {name: (getattr(sums, name).sum() * total, total) for name in named}
        return means | sum_accuracies(*_follow_drafts(sums.right, learnt.counted, pairs.segments))

    return loss


def _check(options: LossOptions, own: GriffinOptions) -> None:
    """Raise a ValueError if an option is out of range or not GRIFFIN's."""
    plain = LossOptions(tile=options.tile, dtype=options.dtype)
    if options != plain:
        raise ValueError(
            "kind, temperature, gamma and anchor_chunk are not GRIFFIN's: leave them at their "
            "defaults and weigh its terms with --method.griffin"
        )
    if not 1 <= own.passes <= 16:
        raise ValueError(f"passes is {own.passes}: give 1 to 16 forward passes")
    for name in ("aligned", "top_tokens"):
        if getattr(own, name) < 1:
            raise ValueError(f"{name} is {getattr(own, name)}: give at least 1 token")


def number_batches(batches: Callable, own: GriffinOptions) -> Callable:
    """Add `step` int32 [B] to every batch, from which the noise is drawn."""

    def at(step: int):
        batch = batches(step)
        return batch | {"step": np.full(len(batch["tokens"]), step, np.int32)}

    return at if own.noise else batches


def make_rows(
    batch, embedding: jax.Array, features: jax.Array, own: GriffinOptions
) -> tuple[Pairs, Learnt]:
    """Make pairs and what they learn from a batch of packed rows.

    Args:
      batch: `tokens`, `segments`, `positions` and `loss_mask` [B, S]; with noise also `rows` and
        `step` int32 [B].
      embedding: [V, E], the target's.
      features: [B, S, E], the target's.
    """
    segments, length = batch["segments"], batch["tokens"].shape[1]

    def ahead(rows: jax.Array, count: int) -> jax.Array:
        return jnp.roll(rows, -count, axis=1)

    def inside(count: int) -> jax.Array:
        """Tell whether the token `count` places later is of the same text."""
        room = jnp.arange(length) < length - count
        return room & (segments > 0) & (ahead(segments, count) == segments)

    mask = batch["loss_mask"] != 0
    counted = inside(1) & mask if own.counted == "feature" else inside(2) & ahead(mask, 2)
    truth = jnp.where(inside(2), ahead(batch["tokens"], 2), -1)
    tokens = jnp.take(embedding, ahead(batch["tokens"], 1), axis=0)
    learnt = Learnt(ahead(features, 1), truth, counted)
    if own.noise:
        features = features + draw_noise(batch, features, own.noise)
    return Pairs(tokens, features, batch["positions"], segments), learnt


def draw_noise(batch, features: jax.Array, width: float) -> jax.Array:
    """Draw uniform noise [B, S, E]; a row's depends on its number and the step alone."""

    def draw(row, step):
        key = jax.random.fold_in(jax.random.fold_in(jax.random.key(0), row), step)
        return jax.random.uniform(key, features.shape[1:], features.dtype, -0.5, 0.5)

    segments = batch["segments"]
    size = (segments[:, :, None] == segments[:, None, :]).sum(-1)[..., None]
    return jax.vmap(draw)(batch["rows"], batch["step"]) * (width * 512 / size)


def score_passes(
    target_config: TargetConfig,
    target,
    found: Passes,
    learnt: Learnt,
    tile: int,
    own: GriffinOptions,
) -> PassLosses:
    """Compute the losses of all passes; logits of `tile` rows exist at a time."""
    shape = found.predict.shape[:3]
    each = jax.tree.map(
        lambda rows: jnp.broadcast_to(rows, (shape[0], *rows.shape)).reshape(-1, *rows.shape[2:]),
        {"teacher": learnt.features, "truth": learnt.truth},
    )
    per_row = make_per_row(target_config, own)
    hidden = found.predict.reshape(-1, found.predict.shape[-1])
    value, extras = map_tiled_rows(per_row, tile, hidden, each, target)
    value, (ce, top, close, right) = jax.tree.map(lambda rows: rows.reshape(shape), (value, extras))
    distance = optax.huber_loss(
        found.regress.astype(jnp.float32), learnt.features.astype(jnp.float32)
    ).mean(-1)
    aligned = align_rows(close)
    weights = (learnt.counted & aligned).astype(jnp.float32)

    def mean(rows: jax.Array) -> jax.Array:
        return (rows * weights).sum((1, 2)) / (weights.sum((1, 2)) + _TINY)

    loss = own.regression * mean(distance) + mean(value)
    return PassLosses(loss, mean(distance), mean(ce), mean(top), aligned, right)


def make_per_row(target_config: TargetConfig, own: GriffinOptions) -> Callable:
    """Make (hidden [t, E], rows, target) -> (weighted losses of tokens [t], extras [t] each).

    Extras are both terms, whether the true token is among the best `own.aligned`, and whether it is
    the best.
    """

    def per_row(hidden, rows, target):
        log_q = jax.nn.log_softmax(draft_logits(target_config, target, hidden, False))
        teacher = draft_logits(target_config, target, rows["teacher"].astype(hidden.dtype), False)
        p = jax.nn.softmax(teacher)
        ce = -(p * log_q).sum(-1)
        likely, ids = jax.lax.top_k(p, min(own.top_tokens, p.shape[-1]))
        top = -(likely * jnp.take_along_axis(log_q, ids, axis=-1)).sum(-1)
        best = jax.lax.top_k(log_q, min(own.aligned, p.shape[-1]))[1]
        same = best == rows["truth"][:, None]
        return own.cross_entropy * ce + own.top * top, (ce, top, same.any(-1), same[:, 0])

    return per_row


def align_rows(close: jax.Array) -> jax.Array:
    """Tell which rows each pass counts, bool [n, B, S].

    The mask of a pass is that of the pass before one row earlier, times whether the pass before was
    close at the row itself (and not at the row whose output is fed, as in the published code). The
    first row of a text follows the last one of another, which has no true token and is never close.

    Args:
      close: bool [n, B, S], whether the true token is among the drafter's best.
    """
    masks = [jnp.ones_like(close[0])]
    for flags in close[:-1]:
        masks.append(jnp.roll(masks[-1], 1, axis=1) & flags)
    return jnp.stack(masks)


def _follow_drafts(
    right: jax.Array, counted: jax.Array, segments: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Line up what is drafted from row t on: pass s at row t + s. Both are bool [B, S, n]."""
    length, lined = segments.shape[1], []
    for number, flags in enumerate(right):
        inside = jnp.roll(segments, -number, axis=1) == segments
        inside &= jnp.arange(length) < length - number
        kept = inside & jnp.roll(counted, -number, axis=1)
        lined.append((jnp.roll(flags, -number, axis=1), kept))
    return tuple(jnp.stack(each, axis=-1) for each in zip(*lined, strict=True))
