"""The optimizers of every recipe: AdamW, and Muon for hidden matrices with AdamW for the rest."""

from __future__ import annotations

import dataclasses
from typing import Literal

import jax
import jax.numpy as jnp
import optax
from optax.contrib import MuonDimensionNumbers, muon

# Kernels [X, in, out] of a layer's experts, see `jaxspec.targets.moe`; the second gives its result.
EXPERTS = ("['gate_up']", "['down']")


@dataclasses.dataclass
class OptimizerOptions:
    """Options of the optimizer.

    Attributes:
      name: `adamw` (Loshchilov and Hutter 2019), or `muon` (Jordan et al. 2024) for hidden kernels
        with AdamW for embeddings, norms and biases. Muon learns far faster at the size of small
        targets and their drafters.
      rate: peak learning rate of AdamW. Drafters of pretrained targets want about 6e-4.
      muon_rate: peak learning rate of Muon.
      warmup: steps over which both rates rise linearly from 0; below 1 their share of all steps.
      decay: how the rates then fall to 0 at the last step.
      clip: global norm to which gradients are clipped, or the largest absolute value.
      clip_by: which of the two.
      betas: decay rates of AdamW's moments. Muon has Nesterov momentum 0.95.
      weight_decay: decoupled, times the rate. Muon decays only its hidden kernels.
      decayed: what AdamW decays: every array of two or more axes, or all, as PyTorch's does.
    """

    name: Literal["adamw", "muon"] = "muon"
    rate: float = 3e-3
    muon_rate: float = 0.02
    warmup: int | float = 20
    decay: Literal["cosine", "linear"] = "cosine"
    clip: float = 1.0
    clip_by: Literal["norm", "value"] = "norm"
    betas: tuple[float, float] = (0.9, 0.95)
    weight_decay: float = 0.0
    decayed: Literal["matrices", "all"] = "matrices"


def make_optimizer(
    params, steps: int, options: OptimizerOptions, outputs: tuple[str, ...] = ()
) -> optax.GradientTransformation:
    """Make the optimizer for a run of `steps` steps.

    Args:
      params: pytree of float32 master weights (arrays or shapes). Losses cast them to the dtype in
        which they compute.
      steps: planned optimizer steps; the rates are 0 after the last.
      options: see `OptimizerOptions`.
      outputs: modules whose kernels give logits, and are no hidden ones.

    Raises:
      ValueError: the warm-up leaves no steps, or a parameter is not float32.
    """
    warmup = options.warmup
    warmup = round(warmup * steps) if 0 < warmup < 1 else int(warmup)
    if not 0 <= warmup < steps:
        raise ValueError(
            f"warmup {options.warmup} must be at least 0 and below the {steps} planned steps"
        )
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        if leaf.dtype != jnp.float32:
            raise ValueError(
                f"parameter {jax.tree_util.keystr(path)} is {leaf.dtype}: master weights must be "
                "float32"
            )

    def schedule(peak):
        if options.decay == "cosine":
            return optax.warmup_cosine_decay_schedule(0.0 if warmup else peak, peak, warmup, steps)
        ramps = [optax.linear_schedule(0.0, peak, warmup)] if warmup else []
        ramps += [optax.linear_schedule(peak, 0.0, steps - warmup)]
        return optax.join_schedules(ramps, [warmup] if warmup else [])

    betas = options.betas
    if options.name == "adamw":
        matrices = jax.tree.map(lambda leaf: leaf.ndim >= 2, params)
        optimizer = optax.adamw(
            schedule(options.rate),
            *betas,
            weight_decay=options.weight_decay,
            mask=matrices if options.decayed == "matrices" else None,
        )
    else:
        optimizer = muon(
            schedule(options.muon_rate),
            adam_learning_rate=schedule(options.rate),
            adam_b1=betas[0],
            adam_b2=betas[1],
            weight_decay=options.weight_decay,
            muon_weight_dimension_numbers=find_matrix_axes(params, outputs),
        )
    clip = optax.clip if options.clip_by == "value" else optax.clip_by_global_norm
    return optax.chain(clip(options.clip), optimizer)


def find_matrix_axes(params, outputs: tuple[str, ...] = ()):
    """Return `MuonDimensionNumbers` for hidden kernels [in, out], also of experts [X, in, out];
    None for other parameters.

    Kernels of the modules `outputs` give logits, and are no hidden ones.
    """

    def axes(path, leaf):
        name = jax.tree_util.keystr(path[-1:])
        hidden = not any(getattr(key, "key", None) in outputs for key in path)
        if leaf.ndim == 3 and name in EXPERTS:
            return MuonDimensionNumbers(1, 2)
        return (
            MuonDimensionNumbers(0, 1) if leaf.ndim == 2 and "kernel" in name and hidden else None
        )

    return jax.tree_util.tree_map_with_path(axes, params)


def zero_residual(params):
    """Zero the projections to the residual stream: every layer starts as the identity."""
    zeroed = ("['o']['kernel']", "['down']['kernel']")

    def start(path, leaf):
        names = jax.tree_util.keystr(path)
        experts = leaf.ndim == 3 and names.endswith(EXPERTS[1])
        return jnp.zeros_like(leaf) if experts or any(name in names for name in zeroed) else leaf

    return jax.tree_util.tree_map_with_path(start, params)
