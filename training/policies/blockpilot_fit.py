"""Fit BlockPilot's predictor: make its inputs, compute its loss, run the epochs."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
from tqdm import tqdm

from jaxspec.policies.learned.blockpilot import (
    BlockPilotConfig,
    blockpilot_features,
    draw_projection,
    fit_projection,
    init_blockpilot,
    scale_logits,
)
from jaxspec.policies.learned.networks import residual_mlp

from .blockpilot_data import Answers, labels_of
from .blockpilot_problem import BlockPilotOptions

DROPOUT = 0.2


def loss_of(layers, x, wanted, key=None, objective: str = "label"):
    """Compute the mean loss, float32 [].

    Args:
      layers: of the predictor.
      x: float32 [n, F], features.
      wanted: float32 [n, C], see `targets`.
      key: random key of the dropout; None leaves dropout out.
      objective: `label` is cross-entropy (the paper); `regret` is the expected regret if sizes are
        drawn from the predicted distribution.
    """

    def dropped(layer, x):
        keep = jax.random.bernoulli(jax.random.fold_in(key, layer), 1 - DROPOUT, x.shape)
        return jnp.where(keep, x / (1 - DROPOUT), 0.0)

    found = residual_mlp(layers, x, *([] if key is None else [dropped]))
    if objective == "label":
        return jnp.mean(optax.softmax_cross_entropy(found, wanted))
    return jnp.mean(jnp.sum(jax.nn.softmax(found) * wanted, axis=-1))


def targets(score: np.ndarray, objective: str) -> np.ndarray:
    """Turn scores [P, C] into training targets, float32 [P, C].

    `label` gives 1 for the label and 0 elsewhere; `regret` gives the distance to the best score, in
    percent of that score.
    """
    if objective == "label":
        return np.eye(score.shape[1], dtype=np.float32)[labels_of(score)]
    return (100 * (1 - score / score.max(1, keepdims=True))).astype(np.float32)


@functools.lru_cache
def _epoch(rate: float, weight_decay: float, objective: str):
    """Make the optimizer and a compiled epoch over rows int32 [steps, batch]."""
    optimizer = optax.adamw(rate, weight_decay=weight_decay)

    def epoch(layers, state, x, wanted, rows, key):
        def step(carry, batch):
            layers, state = carry
            rows, number = batch
            gradient = jax.grad(loss_of)(
                layers, x[rows], wanted[rows], jax.random.fold_in(key, number), objective
            )
            updates, state = optimizer.update(gradient, state, layers)
            return (optax.apply_updates(layers, updates), state), None

        return jax.lax.scan(step, (layers, state), (rows, jnp.arange(len(rows))))[0]

    return optimizer, jax.jit(epoch, donate_argnums=(0, 1))


def fit_predictor(x: np.ndarray, score: np.ndarray, part, options: BlockPilotOptions):
    """Train the predictor; return its layers after the epoch with the largest validation score.

    Args:
      x: float32 [P, F], features.
      score: float [P, C], score of each block size.
      part: (numbers of the training prompts, numbers of the validation prompts).
      options: of the training.
    """
    training, validation = part
    optimizer, epoch = _epoch(options.rate, options.weight_decay, options.objective)
    key, rng = jax.random.key(options.seed), np.random.default_rng(options.seed)
    layers = init_blockpilot(key, x.shape[1], score.shape[1], options.width, options.layers)
    state, batch = optimizer.init(layers), min(options.batch, len(training))
    inputs, wanted = jnp.asarray(x), jnp.asarray(targets(score, options.objective))
    best, kept = -np.inf, None
    for number in tqdm(range(options.epochs), desc="train", unit="epoch", leave=False):
        rows = rng.permutation(training)[: len(training) // batch * batch].reshape(-1, batch)
        layers, state = epoch(layers, state, inputs, wanted, rows, jax.random.fold_in(key, number))
        reached = float(score[validation, predicted(layers, x[validation])].mean())
        if reached > best:
            best, kept = reached, jax.device_get(layers)
    return kept


def predicted(layers, x: np.ndarray) -> np.ndarray:
    """Predict the index of the block size from features [n, F]: int [n]."""
    return np.asarray(jnp.argmax(_forward(layers, x), axis=1))


_forward = jax.jit(residual_mlp)


def inputs(
    answers: Answers, training: np.ndarray, options: BlockPilotOptions
) -> tuple[dict | None, np.ndarray]:
    """Make the network's inputs; principal axes are fitted to the training prompts alone.

    Returns:
      (the projection or None, inputs float32 [P, F]).
    """
    projection = None
    if options.reduction == "projection" and options.random:
        projection = draw_projection(
            jax.random.key(options.seed), answers.logits.shape[1], options.rank
        )
    elif options.reduction == "projection":
        projection = fit_projection(
            scale_logits(answers.logits[training], options.scale),
            min(options.rank, len(training) - 1),
        )
    settings = BlockPilotConfig((), tuple(answers.sizes.tolist()), **choices_of(options))
    return projection, np.asarray(
        blockpilot_features(settings, jnp.asarray(answers.logits), projection)
    )


def choices_of(options: BlockPilotOptions) -> dict:
    """Return the options that are fields of `BlockPilotConfig`."""
    return {"scale": options.scale, "reduction": options.reduction, "top": options.rank}
