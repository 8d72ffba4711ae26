"""The optimizer of every recipe: Muon for the hidden matrices, AdamW for embeddings and norms."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon


def make_optimizer(
    params, steps: int, *, muon_rate: float, adam_rate: float, warmup: int, clip: float
) -> optax.GradientTransformation:
    """Muon (Jordan et al. 2024) with Nesterov momentum 0.95 on 2-D kernels, Adam (0.9, 0.95) on the rest.

    Both rates rise linearly over `warmup` steps and then fall by a cosine to 0 at `steps`; gradients are clipped to a
    global norm of `clip`.
    """
    if not 0 <= warmup < steps:
        raise ValueError(f"warmup {warmup} must be at least 0 and below the {steps} planned steps")

    def schedule(peak):
        return optax.warmup_cosine_decay_schedule(0.0 if warmup else peak, peak, warmup, steps)

    optimizer = muon(
        schedule(muon_rate),
        adam_learning_rate=schedule(adam_rate),
        adam_b2=0.95,
        muon_weight_dimension_numbers=matrix_axes(params),
    )
    return optax.chain(optax.clip_by_global_norm(clip), optimizer)


def matrix_axes(params):
    """`MuonDimensionNumbers` for hidden kernels [in, out], None for embeddings, norms and biases."""

    def axes(path, leaf):
        name = jax.tree_util.keystr(path[-1:])
        return MuonDimensionNumbers(0, 1) if leaf.ndim == 2 and "kernel" in name else None

    return jax.tree_util.tree_map_with_path(axes, params)


def zero_residual(params):
    """`params` with the projections that write to the residual stream at zero: every layer starts as the identity."""

    def start(path, leaf):
        names = jax.tree_util.keystr(path)
        return jnp.zeros_like(leaf) if "['o']['kernel']" in names or "['down']['kernel']" in names else leaf

    return jax.tree_util.tree_map_with_path(start, params)
