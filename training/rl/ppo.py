"""Proximal policy optimisation (Schulman et al. 2017) on Optax, as in Stable-Baselines3 2.7.

Where the paper leaves details open, this follows that library: advantages are normalised per
minibatch with Bessel's correction, the value loss is a plain mean square without clipping,
gradients are clipped by max_norm / (norm + 1e-6), and Adam's epsilon is 1e-5. Two things are added:
samples have weights, so that actions without effect drop out of every mean, and actions can be
forbidden.
"""

from __future__ import annotations

import dataclasses

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np
import optax

from .networks import apply_actor_critic, masked_log_probabilities


@dataclasses.dataclass(frozen=True)
class PpoSettings:
    """Hyper-parameters of one policy.

    Attributes:
      steps: total environment steps.
      rollout: environment steps between updates, over all parallel environments.
      minibatch: samples of a gradient step; must divide the rollout.
      epochs: passes over a rollout.
      rate: peak learning rate.
      warmup: share of `steps` during which the rate rises from 0; then it falls linearly to 0.
      negative_rate: let the last update's rate fall below 0, as the reference does if the rollout
        does not divide `steps`.
      gamma, lam: of generalised advantage estimation.
      clip: of the probability ratio.
      entropy, value: coefficients of the entropy loss and the value loss.
      max_norm: largest norm of the whole gradient.
      actor, critic: hidden layers.
      activation: of both networks.
    """

    steps: int
    rollout: int = 2048
    minibatch: int = 256
    epochs: int = 20
    rate: float = 1e-3
    warmup: float = 0.01
    negative_rate: bool = False
    gamma: float = 0.99
    lam: float = 0.95
    clip: float = 0.2
    entropy: float = 0.01
    value: float = 0.5
    max_norm: float = 0.5
    actor: tuple[int, ...] = (1024, 256)
    critic: tuple[int, ...] = (1024, 256)
    activation: str = "relu"

    def __post_init__(self):
        if self.rollout % self.minibatch:
            raise ValueError(
                f"minibatch is {self.minibatch}: give a divisor of the rollout, {self.rollout}"
            )


class Batch(flax.struct.PyTreeNode):
    """S samples to learn from.

    Attributes:
      observation: float32 [S, I].
      action: int32 [S].
      allowed: bool [S, A], actions that were allowed.
      weight: float32 [S], 0 if the action had no effect.
      old_log_prob, advantage, returns: float32 [S].
    """

    observation: jax.Array
    action: jax.Array
    allowed: jax.Array
    weight: jax.Array
    old_log_prob: jax.Array
    advantage: jax.Array
    returns: jax.Array


def advantages(
    rewards, values, starts, last_value, last_done, gamma: float, lam: float
) -> tuple[jax.Array, jax.Array]:
    """Estimate advantages by generalised advantage estimation (Schulman et al. 2016).

    Args:
      rewards, values: float32 [T, ...].
      starts: [T, ...], 1 where a step begins an episode.
      last_value, last_done: [...], of the observation after the last step.
      gamma, lam: discount and lambda.

    Returns:
      (advantages, returns), float32 [T, ...].
    """
    following = jnp.concatenate([values[1:], last_value[None]])
    goes_on = 1.0 - jnp.concatenate([starts[1:], last_done[None]]).astype(jnp.float32)
    delta = rewards + gamma * following * goes_on - values

    def back(carry, now):
        carry = now[0] + gamma * lam * now[1] * carry
        return carry, carry

    _, advantage = jax.lax.scan(back, jnp.zeros_like(last_value), (delta, goes_on), reverse=True)
    return advantage, advantage + values


def loss_terms(
    logits: jax.Array, values: jax.Array, batch: Batch, settings: PpoSettings
) -> dict[str, jax.Array]:
    """Compute the loss ("total"), its terms, and two figures to watch: weighted means over samples.

    "entropy_loss" is minus the mean entropy; "approx_kl" is the mean of ratio - 1 - log ratio.
    """
    count = jnp.maximum(jnp.sum(batch.weight), 1.0)

    def mean(x):
        return jnp.sum(batch.weight * x) / count

    centred = batch.advantage - mean(batch.advantage)
    spread = jnp.sqrt(jnp.sum(batch.weight * centred**2) / jnp.maximum(count - 1, 1.0))
    advantage = centred / (spread + 1e-8)
    log_prob = masked_log_probabilities(logits, batch.allowed)
    chosen = jnp.take_along_axis(log_prob, batch.action[:, None], axis=-1)[:, 0]
    log_ratio = chosen - batch.old_log_prob
    ratio = jnp.exp(log_ratio)
    clipped = jnp.clip(ratio, 1 - settings.clip, 1 + settings.clip)
    terms = {
        "policy_loss": -mean(jnp.minimum(advantage * ratio, advantage * clipped)),
        "value_loss": mean((batch.returns - values) ** 2),
        "entropy_loss": mean(jnp.sum(jnp.exp(log_prob) * log_prob, axis=-1)),
        "approx_kl": mean(ratio - 1 - log_ratio),
        "clip_fraction": mean((jnp.abs(ratio - 1) > settings.clip).astype(jnp.float32)),
    }
    total = (
        terms["policy_loss"]
        + settings.entropy * terms["entropy_loss"]
        + settings.value * terms["value_loss"]
    )
    return {"total": total, **terms}


def make_ppo_optimizer(settings: PpoSettings) -> optax.GradientTransformation:
    """Make the optimizer that gives a step's direction; `update` multiplies by the rate."""

    def clip(updates, state, params=None):
        factor = jnp.minimum(settings.max_norm / (optax.tree.norm(updates) + 1e-6), 1.0)
        return jax.tree.map(lambda x: factor * x, updates), state

    return optax.chain(
        optax.GradientTransformation(lambda params: optax.EmptyState(), clip),
        optax.scale_by_adam(eps=1e-5),
        optax.scale(-1.0),
    )


def update(params, opt_state, batch: Batch, rate: jax.Array, key: jax.Array, settings: PpoSettings):
    """Run all epochs over a rollout, and shuffle it anew in each epoch.

    Returns:
      (params, opt_state, terms of `loss_terms` averaged over the gradient steps).
    """
    optimizer, samples = make_ppo_optimizer(settings), batch.action.shape[0]

    def objective(params, part):
        terms = loss_terms(
            *apply_actor_critic(params, part.observation, settings.activation), part, settings
        )
        return terms["total"], terms

    def gradient_step(carry, index):
        params, opt_state = carry
        gradient, terms = jax.grad(objective, has_aux=True)(
            params, jax.tree.map(lambda x: x[index], batch)
        )
        direction, opt_state = optimizer.update(gradient, opt_state, params)
        params = jax.tree.map(lambda old, step: old + rate * step, params, direction)
        return (params, opt_state), terms

    def epoch(carry, key):
        order = jax.random.permutation(key, samples).reshape(-1, settings.minibatch)
        return jax.lax.scan(gradient_step, carry, order)

    (params, opt_state), terms = jax.lax.scan(
        epoch, (params, opt_state), jax.random.split(key, settings.epochs)
    )
    return params, opt_state, jax.tree.map(jnp.mean, terms)


def learning_rate(consumed, settings: PpoSettings):
    """Compute the learning rate of an update after `consumed` environment steps (number or array).

    It rises linearly during the warm-up, then falls linearly to 0.
    """
    consumed, rising = np.asarray(consumed, np.float64), settings.warmup * settings.steps
    falling = 1 - (consumed - rising) / (settings.steps - rising)
    share = np.where(consumed < rising, consumed / max(rising, 1e-9), falling)
    return settings.rate * (share if settings.negative_rate else np.maximum(share, 0.0))
