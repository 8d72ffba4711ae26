"""Actor and critic as in Stable-Baselines3: separate trunks, orthogonal kernels, zero biases."""

from __future__ import annotations

from collections.abc import Sequence

import jax
import jax.numpy as jnp

from jaxspec.policies.learned.networks import init_layers, mlp

# Gains of hidden layers, of the action head and of the value head.
HIDDEN_GAIN, ACTION_GAIN, VALUE_GAIN = 2**0.5, 0.01, 1.0


def init_actor_critic(
    key: jax.Array, inputs: int, actions: int, actor: Sequence[int], critic: Sequence[int]
):
    """Make the layers of both networks.

    Args:
      key: of the random weights.
      inputs: length of an observation.
      actions: number of logits.
      actor: hidden sizes of the actor.
      critic: hidden sizes of the critic.

    Returns:
      {"actor": layers to `actions` logits, "critic": layers to one value}.
    """
    first, second = jax.random.split(key)
    hidden, action, value = (
        jax.nn.initializers.orthogonal(gain) for gain in (HIDDEN_GAIN, ACTION_GAIN, VALUE_GAIN)
    )
    return {
        "actor": init_layers(first, (inputs, *actor, actions), hidden, action),
        "critic": init_layers(second, (inputs, *critic, 1), hidden, value),
    }


def apply_actor_critic(
    params, observation: jax.Array, activation: str
) -> tuple[jax.Array, jax.Array]:
    """Compute logits float32 [..., A] and values float32 [...]."""
    return mlp(params["actor"], observation, activation), mlp(
        params["critic"], observation, activation
    )[..., 0]


def masked_log_probabilities(logits: jax.Array, allowed: jax.Array) -> jax.Array:
    """Compute log-probabilities [..., A] over the allowed actions (bool [..., A], at least one).

    Those of other actions are very small but finite, so that their entropies and gradients are zero
    and not undefined.
    """
    return jax.nn.log_softmax(jnp.where(allowed, logits, jnp.finfo(logits.dtype).min / 4), axis=-1)
