"""The networks of learned rules beyond plain perceptrons, and first weights: kernels are float32
[inputs, outputs].
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

Layer = dict[str, jax.Array]


def dense(layer: Layer, x: jax.Array) -> jax.Array:
    """[..., inputs] -> [..., outputs]."""
    return x @ layer["kernel"] + layer["bias"]


def silu_head(weights: dict[str, Layer], x: jax.Array) -> jax.Array:
    """Logits [...] of hidden states [..., E]: one layer with a linear shortcut beside it
    (SpecDec++).

    Args:
      weights: of the layers `hidden`, `shortcut` and `out`.
    """
    return dense(
        weights["out"], jax.nn.silu(dense(weights["hidden"], x)) + dense(weights["shortcut"], x)
    )[..., 0]


def residual_mlp(
    layers: Sequence[Layer], x: jax.Array, drop: Callable = lambda layer, x: x
) -> jax.Array:
    """Logits [..., classes] of features [..., F]; hidden layers after the first add their input
    (BlockPilot).

    Args:
      drop: (layer, activations) -> activations, dropout while training.
    """
    *inner, last = layers
    for number, layer in enumerate(inner):
        new = drop(number, jax.nn.relu(dense(layer, x)))
        x = new if number == 0 else new + x
    return dense(last, x)


def init_layers(key: jax.Array, sizes: Sequence[int], hidden=None, last=None) -> list[Layer]:
    """First weights of layers that lead from sizes[0] inputs to sizes[-1] outputs; biases are 0.

    Args:
      hidden, last: initializers of kernels, of the last layer's (None: LeCun's normal).
    """
    usual, count = jax.nn.initializers.lecun_normal(), len(sizes) - 1
    kernels = [hidden or usual] * (count - 1) + [last or usual]
    keys = jax.random.split(key, count)
    return [
        {"kernel": kernel(key, shape, jnp.float32), "bias": jnp.zeros(shape[1], jnp.float32)}
        for kernel, key, shape in zip(
            kernels, keys, zip(sizes, sizes[1:], strict=False), strict=True
        )
    ]


def init_silu_head(key: jax.Array, inputs: int, width: int) -> dict[str, Layer]:
    """First weights of `silu_head`."""
    first, second = jax.random.split(key)
    hidden, out = init_layers(first, (inputs, width, 1))
    return {"hidden": hidden, "shortcut": init_layers(second, (inputs, width))[0], "out": out}
