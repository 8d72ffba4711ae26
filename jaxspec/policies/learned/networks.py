"""Networks of learned policies: functions over lists of layers, and initial weights.

A layer is {"kernel": float32 [inputs, outputs], "bias": float32 [outputs]}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import jax
import jax.numpy as jnp

Layer = dict[str, jax.Array]
Initializer = Callable[..., jax.Array]

ACTIVATIONS = {"relu": jax.nn.relu, "tanh": jnp.tanh}


def dense(layer: Layer, x: jax.Array) -> jax.Array:
    """Apply one layer: [..., inputs] -> [..., outputs]."""
    return x @ layer["kernel"] + layer["bias"]


def mlp(layers: Sequence[Layer], x: jax.Array, activation: str) -> jax.Array:
    """Apply a perceptron: [..., I] -> float32 [..., O]. The last layer has no activation.

    Args:
      layers: of the network.
      x: inputs.
      activation: one of `ACTIVATIONS`.
    """
    *inner, last = layers
    for layer in inner:
        x = ACTIVATIONS[activation](dense(layer, x))
    return dense(last, x)


def silu_head(weights: dict[str, Layer], x: jax.Array) -> jax.Array:
    """Apply SpecDec++'s head, one hidden layer plus a linear shortcut: [..., E] -> logits [...].

    Args:
      weights: of the layers `hidden`, `shortcut` and `out`.
      x: hidden states.
    """
    return dense(
        weights["out"], jax.nn.silu(dense(weights["hidden"], x)) + dense(weights["shortcut"], x)
    )[..., 0]


def residual_mlp(
    layers: Sequence[Layer],
    x: jax.Array,
    drop: Callable[[int, jax.Array], jax.Array] = lambda layer, x: x,
) -> jax.Array:
    """Apply BlockPilot's residual perceptron: [..., F] -> logits [..., classes].

    Hidden layers after the first add their input.

    Args:
      layers: of the network.
      x: features.
      drop: (layer, activations) -> activations, dropout in training.
    """
    *inner, last = layers
    for number, layer in enumerate(inner):
        new = drop(number, jax.nn.relu(dense(layer, x)))
        x = new if number == 0 else new + x
    return dense(last, x)


def check_network(layers: Sequence[Layer], inputs: int, outputs: int, what: str) -> None:
    """Check that layers lead from `inputs` to `outputs`.

    Raises:
      ValueError: they do not; the message names the policy, `what`.
    """
    shapes = [tuple(layer["kernel"].shape) for layer in layers]
    ends = [inputs, *(shape[1] for shape in shapes[:-1])]
    if not shapes or [shape[0] for shape in shapes] != ends or shapes[-1][1] != outputs:
        raise ValueError(
            f"the {what} policy's layers are {shapes}: with this config they lead from {inputs} "
            f"inputs to {outputs} outputs"
        )


def init_layers(
    key: jax.Array,
    sizes: Sequence[int],
    hidden: Initializer | None = None,
    last: Initializer | None = None,
) -> list[Layer]:
    """Initialise layers from sizes[0] inputs to sizes[-1] outputs; biases are 0.

    Args:
      key: of the random weights.
      sizes: inputs, hidden sizes and outputs.
      hidden, last: initializers of the hidden kernels and of the last one; None takes LeCun's
        normal.
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
    """Initialise the weights of `silu_head`."""
    first, second = jax.random.split(key)
    hidden, out = init_layers(first, (inputs, width, 1))
    return {"hidden": hidden, "shortcut": init_layers(second, (inputs, width))[0], "out": out}
