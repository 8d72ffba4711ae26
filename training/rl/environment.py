"""The replay environment: draft-verify rounds from a record and a table of times, in pure JAX.

It runs many episodes in parallel. Two tasks share one interface (Learning to Draft, section 4). In
the depth task a step either takes another draft step or verifies, and an episode is one round. In
the size task a step chooses the rows to verify, and every step is an episode. Committed tokens
advance the text; when a text ends, a new one is drawn uniformly.
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

from ..replay.records import Record


class Replay(flax.struct.PyTreeNode):
    """A record and its times on the device.

    Attributes:
      scores, committed, context, remaining, entropy, hidden: see `Record`.
      seconds: float32 [N, S, V], time of every possible round.
      first: int32 [Q], position at which each text begins.
    """

    scores: jax.Array
    committed: jax.Array
    seconds: jax.Array
    context: jax.Array
    remaining: jax.Array
    first: jax.Array
    entropy: jax.Array | None = None
    hidden: jax.Array | None = None

    def beyond(self, position: jax.Array, steps: jax.Array) -> features.Beyond:
        """Return what the policies observe beyond P, D and L at positions [E] after `steps` [E]."""
        figures = (self.entropy, self.hidden)
        return features.Beyond(*(None if x is None else x[position, steps] for x in figures))


class Data(flax.struct.PyTreeNode):
    """The input of an environment: the replay and the other policy's decisions at every position.

    Attributes:
      replay: recorded rounds with their times.
      size: int32 [N, S], index of the rows to verify after each number of draft steps.
      depth: int32 [N], draft steps; -1 draws them uniformly.
    """

    replay: Replay
    size: jax.Array | None = None
    depth: jax.Array | None = None


class TimeStep(NamedTuple):
    """The output of an environment for E parallel episodes.

    Attributes:
      observation: float32 [E, I].
      allowed: bool [E, A], actions with an effect of their own.
      weight: float32 [E], 1 if the next action has any effect, else 0.
      reward: float32 [E].
      ended: bool [E], whether this step ended an episode, that is, verified a round.
      tokens, seconds: float32 [E], of the round that ended, else 0.
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
      inputs: length I of an observation.
      actions: number A of actions.
      reset: (data, key, E) -> (state, TimeStep).
      step: (data, state, action int32 [E], key, rate) -> (state, TimeStep). `rate` float32 [] is
        the price of a second in tokens, for the reward `renewal`.
      verifies: (state, action) -> bool [E], whether a step ends its round.
    """

    inputs: int
    actions: int
    reset: Callable[..., tuple[Any, TimeStep]]
    step: Callable[..., tuple[Any, TimeStep]]
    verifies: Callable[..., jax.Array]


class RoundState(flax.struct.PyTreeNode):
    """The state of E episodes.

    Attributes:
      position: int32 [E], in the record.
      steps: int32 [E], draft steps taken so far.
      before: (position, steps) of the previous observation.
    """

    position: jax.Array
    steps: jax.Array
    before: tuple[jax.Array, jax.Array]


def make_environment_replay(record: Record, times: RoundCosts) -> Replay:
    """Move a record and the times of its rounds to the device."""
    seconds = record.round_seconds(times)
    arrays = (
        record.scores,
        record.committed,
        seconds,
        record.context,
        record.remaining,
        record.first(),
    )
    figures = (record.entropy, record.hidden)
    return Replay(
        *(jnp.asarray(array) for array in arrays),
        *(None if x is None else jnp.asarray(x) for x in figures),
    )


def reward_of(kind: str, tokens: jax.Array, seconds: jax.Array, rate: jax.Array) -> jax.Array:
    """Compute a round's reward.

    Args:
      kind: `throughput` is committed tokens per 10 ms (the paper's); `acceptance` is committed
        tokens; `time` is minus the time in hundredths of a second; `renewal` is tokens - rate *
        seconds. If `rate` is the policy's own total tokens over total time, a policy that maximises
        `renewal` maximises that ratio.
      tokens: committed tokens.
      seconds: time of the round.
      rate: tokens per second.
    """
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
    hidden: int = 0,
) -> Environment:
    """Make the depth task: action 1 takes a draft step, action 0 verifies the rows of `Data.size`.

    Args:
      width: W of the dynamic tree.
      steps: maximum draft steps.
      depths: numbers of draft steps after which the action counts; otherwise drafting continues.
      reward: see `reward_of`.
      stale: before the first step, show the previous round's scores instead of the root's, as the
        reference does.
      observes: one of `ltd_features.OBSERVES`.
      hidden: numbers of the drafter's hidden state, if it is observed.
    """
    asked = np.isin(np.arange(steps + 1), depths)

    def show(data, state, outcome):
        context, scores = data.replay.context[state.position], data.replay.scores
        beyond = data.replay.beyond(state.position, state.steps)
        seen = features.depth_observation(
            scores[state.position], context, state.steps, width, observes, beyond
        )
        if stale:
            position, before = state.before
            old = features.depth_observation(scores[position], context, before, width)
            old = jnp.pad(old, ((0, 0), (0, seen.shape[1] - old.shape[1])))
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

    inputs = features.depth_inputs(width, observes, hidden)
    return Environment(inputs, 2, reset, step, verifies)


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
    hidden: int = 0,
) -> Environment:
    """Make the size task: action a verifies `sizes[a]` rows of a tree of depth `Data.depth`.

    Args:
      sees: `pool` or `tree`.
      width: W of the dynamic tree.
      steps: maximum draft steps.
      sizes: numbers of verified rows.
      scores: number of scores of a position.
      reward: see `reward_of`.
      least: minimum draft steps when they are drawn.
      observes: one of `ltd_features.OBSERVES`.
      hidden: numbers of the drafter's hidden state, if it is observed.
    """

    def show(data, state, outcome):
        context, seen = data.replay.context[state.position], data.replay.scores[state.position]
        if sees == "pool":
            beyond = data.replay.beyond(state.position, state.steps)
            seen = features.size_observation(seen, context, state.steps, width, observes, beyond)
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
        features.size_inputs(scores, observes, width, hidden),
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
    """Return the next root's position: after the committed tokens, or in a new text at the end."""
    tokens = tokens.astype(jnp.int32)
    return jnp.where(
        tokens < data.replay.remaining[position],
        position + tokens,
        _new_text(data, key, len(position)),
    )
