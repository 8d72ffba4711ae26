"""BlockPilot: one prediction after the prefill chooses the block size of the request.

arXiv 2606.31315: a residual perceptron reads the target's logits after the last prompt token and
predicts which of a few block sizes around the trained one commits most tokens per round for this
request. `python -m jaxspec.training.policies.blockpilot` trains it and compares it with the best
constant size and with an oracle.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.policies.learned.networks import Layer, check_network, init_layers, residual_mlp
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import tagged

SCALES = ("raw", "softmax", "zscore", "l2")
REDUCTIONS = ("all", "top", "projection")


@tagged("blockpilot")
@dataclasses.dataclass(frozen=True)
class BlockPilotConfig(PolicyConfig):
    """Static choices.

    Attributes:
      sizes: block sizes to choose from, ascending, the anchor included.
      scale: scaling of the logits: `raw` (the paper's choice), `softmax`, or normalised by mean and
        standard deviation (`zscore`) or to unit length (`l2`). The paper does not say how it
        normalises.
      reduction: `all` of the vocabulary; the `top` logits in descending order; or a `projection` to
        few dimensions.
      top: number of logits that the reduction `top` reads.
    """

    sizes: tuple[int, ...] = ()
    scale: str = "raw"
    reduction: str = "all"
    top: int = 256
    score_scale: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        for name, known in (("scale", SCALES), ("reduction", REDUCTIONS)):
            if getattr(self, name) not in known:
                raise ValueError(
                    f"{name} is {getattr(self, name)!r}: {choose_one(getattr(self, name), known)}"
                )
        if not self.sizes or list(self.sizes) != sorted(set(self.sizes)) or self.sizes[0] < 2:
            raise ValueError(
                f"sizes are {list(self.sizes)}: give block sizes in ascending order, from 2"
            )

    def functions(self) -> Functions:
        return _functions(self)


@tagged("blockpilot-predictor")
class Predictor(flax.struct.PyTreeNode):
    """Weights.

    Attributes:
      layers: of the perceptron, see `networks.residual_mlp`.
      projection: {"mean": float32 [V], "axes": float32 [V, R]} of the reduction `projection`, else
        None.
    """

    layers: list[Layer]
    projection: Any = None


def make_blockpilot(sizes, predictor: Predictor, widths: tuple[int, ...] = (), **choices) -> Policy:
    """Make the policy from trained weights; `choices` are fields of `BlockPilotConfig`.

    Raises:
      ValueError: a choice is unknown, or the layers do not end in one number per size.
    """
    config = BlockPilotConfig(tuple(widths), tuple(sizes), **choices)
    if (config.reduction == "projection") != (predictor.projection is not None):
        raise ValueError(
            f"reduction is {config.reduction!r}: give the predictor axes for `projection`, "
            "and for no other"
        )
    check_network(
        predictor.layers, predictor.layers[0]["kernel"].shape[0], len(config.sizes), "BlockPilot"
    )
    return Policy(config, predictor)


def init_blockpilot(
    key: jax.Array, inputs: int, classes: int, width: int = 2048, layers: int = 2
) -> list[Layer]:
    """Initialise the weights; the default sizes are the paper's best.

    Hidden layers follow He et al. 2015 (uniform), the last layer Glorot and Bengio 2010.
    """
    he, glorot = jax.nn.initializers.he_uniform(), jax.nn.initializers.glorot_uniform()
    return init_layers(key, (inputs, *(width,) * layers, classes), he, glorot)


def scale_logits(logits: jax.Array, scale: str) -> jax.Array:
    """Scale logits [..., V] by one of `SCALES`: float32."""
    x = logits.astype(jnp.float32)
    if scale == "softmax":
        return jax.nn.softmax(x, axis=-1)
    if scale == "zscore":
        return (x - jnp.mean(x, axis=-1, keepdims=True)) / jnp.std(x, axis=-1, keepdims=True)
    return x / jnp.linalg.norm(x, axis=-1, keepdims=True) if scale == "l2" else x


def blockpilot_features(config: BlockPilotConfig, logits: jax.Array, projection=None) -> jax.Array:
    """Make the network's inputs [..., F] from logits [..., V]."""
    x = scale_logits(logits, config.scale)
    if config.reduction == "top":
        return jax.lax.top_k(x, min(config.top, x.shape[-1]))[0]
    return (x - projection["mean"]) @ projection["axes"] if config.reduction == "projection" else x


def draw_projection(key: jax.Array, vocab_size: int, rank: int) -> dict[str, jax.Array]:
    """Draw random axes (Johnson and Lindenstrauss): normal numbers, preserving mean lengths."""
    return {
        "mean": jnp.zeros(vocab_size),
        "axes": jax.random.normal(key, (vocab_size, rank)) / jnp.sqrt(rank),
    }


def fit_projection(x: np.ndarray, rank: int) -> dict[str, jax.Array]:
    """Compute the `rank` principal axes of features [P, V], on the host.

    Each axis is divided by the standard deviation along it.
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
def _functions(config: BlockPilotConfig) -> Functions:
    def block(predictor, state, seen):
        x = blockpilot_features(config, seen.logits, predictor.projection)
        best = jnp.argmax(residual_mlp(predictor.layers, x), axis=-1)
        return jnp.asarray(config.sizes, jnp.int32)[best]

    return Functions(
        lambda shape: (), Acts(block=block), keep_state, frozenset({"logits"}), blocks=config.sizes
    )
