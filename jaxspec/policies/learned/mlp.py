"""Multi-layer perceptrons of policies: a list of layers, and one function."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


def mlp(layers: Sequence[dict[str, jax.Array]], x: jax.Array, activation: str) -> jax.Array:
    """Outputs float32 [..., O] of inputs [..., I]; the activation stands between layers, not after
    the last.

    Args:
      layers: {"kernel": float32 [in, out], "bias": float32 [out]} each.
      activation: one of `ACTIVATIONS`.
    """
    *inner, last = layers
    for layer in inner:
        x = ACTIVATIONS[activation](x @ layer["kernel"] + layer["bias"])
    return x @ last["kernel"] + last["bias"]


def check_layers(
    layers: Sequence[dict[str, jax.Array]], inputs: int, outputs: int, what: str
) -> None:
    """Raise a ValueError where layers do not lead from `inputs` to `outputs`."""
    shapes = [tuple(layer["kernel"].shape) for layer in layers]
    ends = [inputs, *(shape[1] for shape in shapes[:-1])]
    if not shapes or [shape[0] for shape in shapes] != ends or shapes[-1][1] != outputs:
        raise ValueError(
            f"the {what} policy's layers are {shapes}: with these settings they lead from {inputs} inputs to {outputs} outputs"
        )
