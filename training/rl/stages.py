"""One stage of LTD: train one policy with PPO on the replay environment; the other is fixed."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp

from .environment import Data, Environment, TimeStep
from .networks import apply_actor_critic, masked_log_probabilities
from .ppo import Batch, PpoSettings, advantages, make_ppo_optimizer, update


class Learner(flax.struct.PyTreeNode):
    """The state of a stage, arrays only.

    Attributes:
      params, opt_state: of the networks and their optimizer.
      env: state of the environment.
      now: the environment's last `TimeStep`.
      key: key data of the sampling.
      rate: float32 [], tokens per second of the last rollout, used by the reward `renewal`.
      best: the actor with the best validation.
      best_value: float32 [], tokens per second of `best`.
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
    environment: Environment,
    data: Data,
    params,
    settings: PpoSettings,
    parallel: int,
    seed: int,
    rate: float,
) -> Learner:
    """Make a learner before its first update; `rate` is a first estimate of tokens per second."""
    key, first = jax.random.split(jax.random.key(seed))
    env, now = environment.reset(data, first, parallel)
    optimizer = make_ppo_optimizer(settings)
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


def make_update(
    environment: Environment,
    settings: PpoSettings,
    parallel: int,
    weighted: bool,
    live: bool = False,
) -> Callable:
    """Make a function that runs one rollout and PPO's epochs over it.

    Args:
      environment: the task.
      settings: of PPO.
      parallel: parallel episodes; must divide the rollout.
      weighted: leave actions without effect out of the batch.
      live: the environment's steps are not pure, so the host runs them one by one; otherwise
        everything is one compiled program.

    Returns:
      (learner, data, learning rate) -> (learner, figures).

    Raises:
      ValueError: `parallel` does not divide the rollout.
    """
    if settings.rollout % parallel:
        raise ValueError(
            f"parallel is {parallel}: give a divisor of the rollout, {settings.rollout}"
        )
    count = settings.rollout // parallel

    def advance(learner: Learner, data, rate):
        key, rolling, shuffling = jax.random.split(jax.random.wrap_key_data(learner.key), 3)
        roll = _roll_on_host if live else _roll
        env, now, seen = roll(
            environment, settings, data, learner, jax.random.split(rolling, count)
        )
        return learn(
            learner.replace(env=env, now=now, key=jax.random.key_data(key)), seen, rate, shuffling
        )

    def learn(learner: Learner, seen, rate, key):
        batch = _batch(seen, learner, settings, weighted)
        params, opt_state, terms = update(
            learner.params, learner.opt_state, batch, rate, key, settings
        )
        tokens, seconds, rounds = (seen[name].sum() for name in ("tokens", "seconds", "ended"))
        speed = tokens / jnp.maximum(seconds, 1e-9)
        found = {
            "reward": seen["reward"].sum() / jnp.maximum(rounds, 1),
            "rollout_tokens_per_second": speed,
            "rollout_acceptance_length": tokens / jnp.maximum(rounds, 1),
            **{
                name: terms[name]
                for name in ("total", "value_loss", "entropy_loss", "approx_kl", "clip_fraction")
            },
        }
        return learner.replace(
            params=params, opt_state=opt_state, rate=jnp.where(seconds > 0, speed, learner.rate)
        ), found

    if live:
        learn = jax.jit(learn)
        return advance
    return jax.jit(advance, donate_argnums=0)


def _roll(
    environment: Environment, settings: PpoSettings, data: Data, learner: Learner, keys: jax.Array
):
    """Step all episodes with sampled actions, once for each of `keys`.

    Returns:
      (environment state, last TimeStep, collected arrays [steps, E, ...] by name).
    """

    def one(carry, key):
        env, now = carry
        first, second = jax.random.split(key)
        action, seen = _sample(learner.params, now, first, settings.activation)
        env, new = environment.step(data, env, action, second, learner.rate)
        return (env, new), seen | _earned(new)

    (env, now), seen = jax.lax.scan(one, (learner.env, learner.now), keys)
    return env, now, seen


def _roll_on_host(
    environment: Environment, settings: PpoSettings, data, learner: Learner, keys: jax.Array
):
    """Do the same as `_roll`, one step at a time on the host."""
    env, now, steps = learner.env, learner.now, []
    for key in keys:
        first, second = jax.random.split(key)
        action, seen = _sample(learner.params, now, first, settings.activation)
        env, now = environment.step(data, env, action, second, learner.rate)
        steps.append(seen | _earned(now))
    return env, now, jax.tree.map(lambda *x: jnp.stack(x), *steps)


@functools.partial(jax.jit, static_argnums=3)
def _sample(params, now: TimeStep, key: jax.Array, activation: str):
    logits, value = apply_actor_critic(params, now.observation, activation)
    log_prob = masked_log_probabilities(logits, now.allowed)
    action = jax.random.categorical(key, log_prob).astype(jnp.int32)
    return action, {
        "observation": now.observation,
        "allowed": now.allowed,
        "weight": now.weight,
        "start": now.ended,
        "action": action,
        "log_prob": jnp.take_along_axis(log_prob, action[:, None], axis=-1)[:, 0],
        "value": value,
    }


def _earned(new: TimeStep) -> dict[str, jax.Array]:
    return {"reward": new.reward, "ended": new.ended, "tokens": new.tokens, "seconds": new.seconds}


def _batch(seen, learner: Learner, settings: PpoSettings, weighted: bool) -> Batch:
    _, last = apply_actor_critic(learner.params, learner.now.observation, settings.activation)
    advantage, returns = advantages(
        seen["reward"],
        seen["value"],
        seen["start"],
        last,
        learner.now.ended,
        settings.gamma,
        settings.lam,
    )
    weight = seen["weight"] if weighted else jnp.ones_like(seen["weight"])
    # Rewards still propagate back through an action without effect; only its own sample is left
    # out.
    named = (
        seen["observation"],
        seen["action"],
        seen["allowed"],
        weight,
        seen["log_prob"],
        advantage,
        returns,
    )
    return Batch(*(x.reshape(-1, *x.shape[2:]) for x in named))
