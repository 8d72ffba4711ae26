"""One stage of LTD: PPO of one policy on the replay environment while the other stays as it is."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from training.rl.environment import Data, Environment, TimeStep
from training.rl.networks import apply_actor_critic, masked_log_probabilities
from training.rl.ppo import Batch, PpoSettings, advantages, make_optimizer, update


@flax.struct.dataclass
class Learner:
    """All that a stage needs to go on, arrays alone.

    Attributes:
      params, opt_state: the networks and their optimizer.
      env: the environment's state. now: its last `TimeStep`. key: of sampling, as key data.
      rate: float32 [], tokens per second of the last rollout, what the reward `renewal` charges.
      best: the actor that validated best. best_value: float32 [], its tokens per second.
    """

    params: Any
    opt_state: Any
    env: Any
    now: TimeStep
    key: jax.Array
    rate: jax.Array
    best: Any
    best_value: jax.Array


def start(
    environment: Environment, data: Data, params, settings: PpoSettings, parallel: int, seed: int, rate: float
) -> Learner:
    """A learner before its first update; `rate` is the first guess at tokens per second."""
    key, first = jax.random.split(jax.random.key(seed))
    env, now = environment.reset(data, first, parallel)
    optimizer = make_optimizer(settings)
    return Learner(
        params=params,
        opt_state=optimizer.init(params),
        env=env,
        now=now,
        key=jax.random.key_data(key),
        rate=jnp.float32(rate),
        best=params["actor"],
        best_value=jnp.float32(0),
    )


def make_update(environment: Environment, settings: PpoSettings, parallel: int, weighted: bool) -> Callable:
    """`(learner, data, learning rate) -> (learner, figures)`, one compiled program: a rollout and PPO's epochs over it.

    Args:
      parallel: episodes side by side; divides the rollout. weighted: leave actions without effect out of the batch.

    Raises:
      ValueError: `parallel` does not divide the rollout.
    """
    if settings.rollout % parallel:
        raise ValueError(f"parallel is {parallel}: give a divisor of the rollout, {settings.rollout}")

    @functools.partial(jax.jit, donate_argnums=0)
    def advance(learner: Learner, data: Data, rate):
        key, rolling, shuffling = jax.random.split(jax.random.wrap_key_data(learner.key), 3)
        env, now, seen = roll(environment, settings, data, learner, rolling, settings.rollout // parallel)
        batch = _batch(seen, learner, now, settings, weighted)
        params, opt_state, terms = update(learner.params, learner.opt_state, batch, rate, shuffling, settings)
        tokens, seconds = seen["tokens"].sum(), seen["seconds"].sum()
        found = {
            "reward": seen["reward"].sum() / jnp.maximum(seen["ended"].sum(), 1),
            "rollout_tokens_per_second": tokens / jnp.maximum(seconds, 1e-9),
            "rollout_acceptance_length": tokens / jnp.maximum(seen["ended"].sum(), 1),
            **{name: terms[name] for name in ("total", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")},
        }
        learner = learner.replace(
            params=params,
            opt_state=opt_state,
            env=env,
            now=now,
            key=jax.random.key_data(key),
            rate=jnp.where(seconds > 0, tokens / jnp.maximum(seconds, 1e-9), learner.rate),
        )
        return learner, found

    return advance


def roll(environment: Environment, settings: PpoSettings, data: Data, learner: Learner, key: jax.Array, count: int):
    """`count` steps of all episodes with sampled actions.

    Returns:
      (environment state, last TimeStep, what was seen: arrays [count, E, ...]).
    """

    def one(carry, key):
        env, now = carry
        first, second = jax.random.split(key)
        logits, value = apply_actor_critic(learner.params, now.observation, settings.activation)
        log_prob = masked_log_probabilities(logits, now.allowed)
        action = jax.random.categorical(first, log_prob).astype(jnp.int32)
        env, new = environment.step(data, env, action, second, learner.rate)
        seen = {
            "observation": now.observation,
            "allowed": now.allowed,
            "weight": now.weight,
            "start": now.ended,
            "action": action,
            "log_prob": jnp.take_along_axis(log_prob, action[:, None], axis=-1)[:, 0],
            "value": value,
            "reward": new.reward,
            "ended": new.ended,
            "tokens": new.tokens,
            "seconds": new.seconds,
        }
        return (env, new), seen

    (env, now), seen = jax.lax.scan(one, (learner.env, learner.now), jax.random.split(key, count))
    return env, now, seen


def _batch(seen, learner: Learner, now: TimeStep, settings: PpoSettings, weighted: bool) -> Batch:
    _, last = apply_actor_critic(learner.params, now.observation, settings.activation)
    advantage, returns = advantages(seen["reward"], seen["value"], seen["start"], last, now.ended, settings.gamma, settings.lam)
    weight = seen["weight"] if weighted else jnp.ones_like(seen["weight"])
    # An action without effect still carries the reward that follows it: only its own sample drops out.
    named = (seen["observation"], seen["action"], seen["allowed"], weight, seen["log_prob"], advantage, returns)
    return Batch(*(x.reshape(-1, *x.shape[2:]) for x in named))
