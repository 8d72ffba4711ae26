"""The replay environment: draft-verify rounds out of a record and a table of times, in pure JAX,
many at once.

Two tasks with one interface (Learning to Draft, section 4). In the depth task a step takes another
draft step or verifies, and an episode is one round. In the size task a step chooses the rows to
verify, and every step is an episode. What a round commits moves the text on, and a text that ends
gives way to another one, drawn uniformly.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from jaxspec.policies.learned import ltd_features as features
from training.replay.records import Record


class Replay(flax.struct.PyTreeNode):
    """A record and its times on the device; attributes as of `Record`, and

    seconds: float32 [N, S, V], of every round there could be. first: int32 [Q], where the texts
    begin.
    """

    scores: jax.Array
    committed: jax.Array
    seconds: jax.Array
    context: jax.Array
    remaining: jax.Array
    first: jax.Array


class Data(flax.struct.PyTreeNode):
    """What an environment reads: the replay and the other policy's decisions at every position.

    Attributes:
      size: int32 [N, S], index of the rows verified after so many steps. depth: int32 [N], draft
        steps; -1: drawn uniformly.
    """

    replay: Replay
    size: jax.Array | None = None
    depth: jax.Array | None = None


class TimeStep(NamedTuple):
    """What environments give, of E episodes side by side.

    Attributes:
      observation: float32 [E, I]. allowed: bool [E, A], actions that differ from others in effect.
        weight: float32 [E], whether the next action has any effect at all.
      reward: float32 [E]. ended: bool [E], the step just taken ended an episode: a round was
        verified.
      tokens, seconds: float32 [E], of that round; else 0.
    """

    observation: jax.Array
    allowed: jax.Array
    weight: jax.Array
    reward: jax.Array
    ended: jax.Array
    tokens: jax.Array
    seconds: jax.Array


class Environment(NamedTuple):
    """A task.

    Attributes:
      inputs, actions: sizes of observations and of the choice.
      reset: (data, key, E) -> (state, TimeStep).
      step: (data, state, action int32 [E], key, rate) -> (state, TimeStep); `rate` float32 [],
        tokens per second that the reward `renewal` charges.
      verifies: (state, action) -> bool [E], whether a step ends its round.
    """

    inputs: int
    actions: int
    reset: Callable[..., tuple[Any, TimeStep]]
    step: Callable[..., tuple[Any, TimeStep]]
    verifies: Callable[..., jax.Array]


class RoundState(flax.struct.PyTreeNode):
    """Where E episodes are: position, and draft steps so far, both int32 [E]; `before`: (position,
    steps) shown before.
    """

    position: jax.Array
    steps: jax.Array
    before: tuple[jax.Array, jax.Array]


def make_environment_replay(record: Record, times: RoundCosts) -> Replay:
    """A record with the times of its rounds."""
    seconds = record.round_seconds(times)
    arrays = (
        record.scores,
        record.committed,
        seconds,
        record.context,
        record.remaining,
        record.first(),
    )
    return Replay(*(jnp.asarray(array) for array in arrays))


def reward_of(kind: str, tokens: jax.Array, seconds: jax.Array, rate: jax.Array) -> jax.Array:
    """A round's reward: `throughput`, committed tokens per 10 ms (the paper's); `acceptance`,
    tokens; `time`, minus hundredths of a second; `renewal`, tokens - rate * seconds, whose optimum
    is total tokens over total time when `rate` is just that."""
    rewards = {
        "throughput": tokens / (100 * seconds),
        "acceptance": tokens,
        "time": -100 * seconds,
        "renewal": tokens - rate * seconds,
    }
    return rewards[kind]


def make_depth_environment(
    width: int,
    steps: int,
    depths: tuple[int, ...],
    reward: str,
    *,
    stale: bool = False,
    observes: str = "P+D+L",
) -> Environment:
    """The depth task: action 1 takes a draft step, 0 verifies the rows that `Data.size` says.

    Args:
      steps: most draft steps. depths: after how many of them the action counts; before, drafting
        goes on.
      stale: before the first step show the scores of the round before, as the reference does,
        instead of the root's.
      observes: one of `ltd_features.OBSERVES`.
    """
    asked = np.isin(np.arange(steps + 1), depths)

    def show(data, state, outcome):
        context, scores = data.replay.context[state.position], data.replay.scores
        seen = features.depth_observation(
            scores[state.position], context, state.steps, width, observes
        )
        if stale:
            position, before = state.before
            old = features.depth_observation(scores[position], context, before, width)
            seen = jnp.where(
                (state.steps == 0)[:, None] & (jnp.arange(seen.shape[1]) < width * width), old, seen
            )
        weight = jnp.asarray(asked)[state.steps].astype(jnp.float32)
        return TimeStep(seen, jnp.ones((len(context), 2), bool), weight, *outcome)

    def reset(data, key, count):
        position = _new_text(data, key, count)
        zero = jnp.zeros_like(position)
        state = RoundState(position, zero, (position, zero))
        return state, show(data, state, _nothing(count))

    def verifies(state, action):
        return ~jnp.where(jnp.asarray(asked)[state.steps], action == 1, state.steps < steps)

    def step(data, state, action, key, rate):
        go = ~verifies(state, action)
        index = (state.position, state.steps, data.size[state.position, state.steps])
        tokens, seconds = (
            x[index].astype(jnp.float32) for x in (data.replay.committed, data.replay.seconds)
        )
        outcome = (
            jnp.where(go, 0.0, x)
            for x in (reward_of(reward, tokens, seconds, rate), tokens, seconds)
        )
        earned, tokens, seconds = outcome
        moved = jnp.where(go, state.position, _advance(data, state.position, tokens, key))
        before = tuple(
            jnp.where(go, old, new)
            for old, new in zip(state.before, (state.position, state.steps), strict=True)
        )
        state = RoundState(moved, jnp.where(go, state.steps + 1, 0), before)
        return state, show(data, state, (earned, ~go, tokens, seconds))

    return Environment(features.depth_inputs(width), 2, reset, step, verifies)


def make_size_environment(
    sees: str,
    width: int,
    steps: int,
    sizes: tuple[int, ...],
    scores: int,
    reward: str,
    *,
    least: int = 1,
    observes: str = "P+D+L",
) -> Environment:
    """The size task: action a verifies `sizes[a]` rows of a tree as deep as `Data.depth` says.

    Args:
      sees: `pool` or `tree`. scores: of a position. least: draft steps, where they are drawn.
      observes: one of `ltd_features.OBSERVES`.
    """

    def show(data, state, outcome):
        context, seen = data.replay.context[state.position], data.replay.scores[state.position]
        if sees == "pool":
            seen = features.size_observation(seen, context, state.steps, width, observes)
            available = 1 + features.pool_size(width, state.steps)
        else:
            available = 1 + jnp.sum(seen > -jnp.inf, axis=-1)
            seen = features.tree_observation(seen, context, observes)
        return TimeStep(
            seen,
            features.allowed_sizes(sizes, available),
            jnp.ones_like(context, jnp.float32),
            *outcome,
        )

    def drafted(data, position, key):
        drawn = (
            jax.random.randint(key, position.shape, least, steps + 1)
            if steps
            else jnp.zeros_like(position)
        )
        return (
            drawn
            if data.depth is None
            else jnp.where(data.depth[position] < 0, drawn, data.depth[position])
        )

    def reset(data, key, count):
        first, second = jax.random.split(key)
        position = _new_text(data, first, count)
        state = RoundState(position, drafted(data, position, second), ())
        return state, show(data, state, _nothing(count))

    def step(data, state, action, key, rate):
        first, second = jax.random.split(key)
        index = (state.position, state.steps, action)
        tokens, seconds = (
            x[index].astype(jnp.float32) for x in (data.replay.committed, data.replay.seconds)
        )
        position = _advance(data, state.position, tokens, first)
        state = RoundState(position, drafted(data, position, second), ())
        outcome = (
            reward_of(reward, tokens, seconds, rate),
            jnp.ones_like(action, bool),
            tokens,
            seconds,
        )
        return state, show(data, state, outcome)

    return Environment(
        features.size_inputs(scores),
        len(sizes),
        reset,
        step,
        lambda state, action: jnp.ones_like(action, bool),
    )


def _nothing(count: int):
    zero = jnp.zeros(count)
    return zero, zero > 0, zero, zero


def _new_text(data: Data, key: jax.Array, count: int) -> jax.Array:
    first = data.replay.first
    return first[jax.random.randint(key, (count,), 0, len(first))]


def _advance(data: Data, position: jax.Array, tokens: jax.Array, key: jax.Array) -> jax.Array:
    """The next root's position: behind what was committed, or a new text's first where this one
    ends.
    """
    tokens = tokens.astype(jnp.int32)
    return jnp.where(
        tokens < data.replay.remaining[position],
        position + tokens,
        _new_text(data, key, len(position)),
    )
