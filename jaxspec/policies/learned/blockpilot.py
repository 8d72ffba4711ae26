"""BlockPilot: one prediction after the prefill chooses the block size of the request.

arXiv 2606.31315: a residual perceptron reads the target's logits after the last prompt token and
names one of a few block sizes around the trained one, the one with which the request is expected to
commit most tokens a round. Trained by `python -m training.policies.blockpilot`, which says beside
it what always choosing one size, and knowing the best, would give.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.learned.heads import Layer, init_layers, residual_mlp
from jaxspec.policies.learned.mlp import check_layers
from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged

SCALES = ("raw", "softmax", "zscore", "l2")
REDUCTIONS = ("all", "top", "projection")


@dataclasses.dataclass(frozen=True)
class BlockPilotSettings(Settings):
    """Static choices.

    Attributes:
      sizes: block sizes to choose from, ascending, the anchor included.
      scale: what is read of the logits: `raw` (the paper's choice), their `softmax`, or normalised,
        by mean and standard deviation (`zscore`) or to unit length (`l2`); the paper does not say
        which.
      reduction: `all` of the vocabulary; the `top` numbers in falling order; or a `projection` to
        few dimensions.
      top: numbers of the reduction `top`.
    """

    sizes: tuple[int, ...] = ()
    scale: str = "raw"
    reduction: str = "all"
    top: int = 256

    def __post_init__(self):
        for name, known in (("scale", SCALES), ("reduction", REDUCTIONS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: choose one of {', '.join(known)}"
                )
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 2:
            raise ValueError(
                f"sizes are {list(self.sizes)}: give block sizes in ascending order, from 2"
            )

    def functions(self) -> Functions:
        return _functions(self)


@flax.struct.dataclass
class Predictor:
    """Weights.

    Attributes:
      layers: of the perceptron, see `heads.residual_mlp`.
      projection: {"mean": float32 [V], "axes": float32 [V, R]} of the reduction `projection`, else
        None.
    """

    layers: list[Layer]
    projection: Any = None


def make_blockpilot(sizes, predictor: Predictor, widths: tuple[int, ...] = (), **choices) -> Policy:
    """The policy with trained weights; `choices` as of `BlockPilotSettings`.

    Raises:
      ValueError: a choice that is none, or layers that do not end in one number a size.
    """
    settings = BlockPilotSettings(tuple(widths), tuple(sizes), **choices)
    if (settings.reduction == "projection") != (predictor.projection is not None):
        raise ValueError(
            f"reduction is {settings.reduction!r}: give the predictor axes for `projection`, and for no other"
        )
    check_layers(
        predictor.layers, predictor.layers[0]["kernel"].shape[0], len(settings.sizes), "BlockPilot"
    )
    return Policy(settings, predictor)


def init_layers_of(
    key: jax.Array, inputs: int, classes: int, width: int = 2048, layers: int = 2
) -> list[Layer]:
    """First weights: hidden layers by He et al. 2015 (uniform), the last by Glorot and Bengio 2010;
    the paper's best sizes.
    """
    he, glorot = jax.nn.initializers.he_uniform(), jax.nn.initializers.glorot_uniform()
    return init_layers(key, (inputs, *(width,) * layers, classes), he, glorot)


def scaled(logits: jax.Array, scale: str) -> jax.Array:
    """What is read of logits [..., V], float32."""
    x = logits.astype(jnp.float32)
    if scale == "softmax":
        return jax.nn.softmax(x, axis=-1)
    if scale == "zscore":
        return (x - jnp.mean(x, axis=-1, keepdims=True)) / jnp.std(x, axis=-1, keepdims=True)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True) if scale == "l2" else x


def features(settings: BlockPilotSettings, logits: jax.Array, projection=None) -> jax.Array:
    """The network's inputs [..., F] of logits [..., V]."""
    x = scaled(logits, settings.scale)
    if settings.reduction == "top":
        return jax.lax.top_k(x, min(settings.top, x.shape[-1]))[0]
    return (
        (x - projection["mean"]) @ projection["axes"] if settings.reduction == "projection" else x
    )


def random_projection(key: jax.Array, vocab_size: int, rank: int) -> dict[str, jax.Array]:
    """Axes of Johnson and Lindenstrauss: independent normal numbers that keep lengths on
    average.
    """
    return {
        "mean": jnp.zeros(vocab_size),
        "axes": jax.random.normal(key, (vocab_size, rank)) / jnp.sqrt(rank),
    }


def principal_projection(x: np.ndarray, rank: int) -> dict[str, jax.Array]:
    """The `rank` principal axes of features [P, V], each divided by the standard deviation along
    it; computed on the host.
    """
    x = np.asarray(x, np.float32)
    mean = x.mean(axis=0)
    _, spread, axes = np.linalg.svd(x - mean, full_matrices=False)
    deviation = spread[:rank] / np.sqrt(max(len(x) - 1, 1))
    return {
        "mean": jnp.asarray(mean),
        "axes": jnp.asarray((axes[:rank] / np.maximum(deviation, 1e-6)[:, None]).T),
    }


@functools.lru_cache
def _functions(settings: BlockPilotSettings) -> Functions:
    def block(predictor, state, seen):
        x = features(settings, seen.logits, predictor.projection)
        best = jnp.argmax(residual_mlp(predictor.layers, x), axis=-1)
        return jnp.asarray(settings.sizes, jnp.int32)[best]

    return Functions(lambda shape: (), Acts(block=block), unchanged, frozenset({"logits"}))
