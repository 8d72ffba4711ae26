"""Replay policies on a record: their decision at every position, and the time of whole texts.

All times are modelled.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.learned import ltd_features as features
from jaxspec.policies.learned.ltd import LtdConfig
from jaxspec.policies.learned.networks import mlp

from ..replay.records import Record

# Positions decided by one device call.
CHUNK = 1024


class Walk(NamedTuple):
    """Texts generated with some decisions.

    Attributes:
      tokens, seconds, rounds: [Q], of each prompt; seconds are modelled.
      steps, sizes: int [rounds], draft steps and size index of each round.
      positions: int [rounds], where in the record each round is; None for several walks together.
    """

    tokens: np.ndarray
    seconds: np.ndarray
    rounds: np.ndarray
    steps: np.ndarray
    sizes: np.ndarray
    positions: np.ndarray | None = None

    def figures(self, record: Record) -> dict[str, float]:
        """Compute tokens per second (total over total), the mean of the prompts' tokens per second,
        tokens per round, mean steps and mean rows.
        """
        return {
            "tokens_per_second": float(self.tokens.sum() / self.seconds.sum()),
            "mean_of_prompts": float(np.mean(self.tokens / self.seconds)),
            "acceptance_length": float(self.tokens.sum() / self.rounds.sum()),
            "steps": float(self.steps.mean()),
            "rows": float(np.asarray(record.sizes)[self.sizes].mean()),
        }


def walk(record: Record, seconds: np.ndarray, steps: np.ndarray, sizes: np.ndarray) -> Walk:
    """Generate every text.

    Args:
      record: recorded rounds.
      seconds: [N, S, V], see `RoundCosts.seconds`.
      steps, sizes: int [N] or numbers, draft steps and size index for a round at each position.
    """
    steps, sizes = (np.broadcast_to(x, len(record.context)) for x in (steps, sizes))
    at = np.arange(len(record.context))
    committed, cost = record.committed[at, steps, sizes], seconds[at, steps, sizes]
    per_prompt, visited = [], []
    for start in record.first():
        position, end, own = int(start), int(start + record.remaining[start]), []
        while position < end:
            own.append(position)
            position += int(committed[position])
        per_prompt.append((end - start, cost[own].sum(dtype=np.float64), len(own)))
        visited += own
    tokens, taken, rounds = np.array(per_prompt).T
    at = np.array(visited, int)
    return Walk(tokens, taken, rounds.astype(int), steps[visited], sizes[visited], at)


def best_static(record: Record, seconds: np.ndarray) -> tuple[int, int]:
    """Find the constant (steps, size index) with the most tokens per second by grid search."""
    pairs = [(d, v) for d in range(record.committed.shape[1]) for v in range(len(record.sizes))]
    rates = [walk(record, seconds, d, v).figures(record)["tokens_per_second"] for d, v in pairs]
    return pairs[int(np.argmax(rates))]


def oracle(record: Record, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Find each position's (steps, size index), int [N], that reaches the text's end fastest.

    No policy can be faster. Rounds lead only to later positions, so the least time to the end is
    computed backwards from the end.
    """
    count, shape = len(record.context), record.committed.shape[1:]
    choice, left = np.zeros(count, int), np.zeros(count + 1)
    for position in range(count - 1, -1, -1):
        reached = record.committed[position].astype(int)
        onward = np.where(
            reached < record.remaining[position], left[np.minimum(position + reached, count)], 0.0
        )
        total = seconds[position] + onward
        choice[position] = total.argmin()
        left[position] = total.min()
    return np.unravel_index(choice, shape)


def decisions(
    record: Record, layers: dict, config: LtdConfig, static: tuple[int, int]
) -> tuple[np.ndarray, np.ndarray]:
    """Compute the decisions of networks at every position.

    Args:
      record: recorded rounds.
      layers: {"depth": layers, "size": layers}; `static` decides for a missing one.
      config: of the policy.
      static: (steps, size index).

    Returns:
      (steps, size index), int [N] each.
    """
    count, (steps, size) = len(record.context), static
    depths = (
        choose_depths(record, layers["depth"], config)
        if "depth" in layers
        else np.full(count, steps)
    )
    if "size" not in layers:
        return depths, np.full(count, size)
    return depths, choose_sizes(record, layers["size"], config)[np.arange(count), depths]


def check_scale(record: Record, config: LtdConfig) -> None:
    """Raise a ValueError if a record holds scores of another scale than the policy reads."""
    held, read = record.header["score_scale"], config.score_scale
    if held != read:
        raise ValueError(
            f"the policy reads scores at scale {read}, the record holds those at {held}: "
            f"record again with --score-scale {read}, or train on this record"
        )


def choose_depths(record: Record, layers, config: LtdConfig) -> np.ndarray:
    """Compute the draft steps that the depth policy takes at every position: int32 [N]."""
    check_scale(record, config)
    return _in_chunks(functools.partial(depths_of, layers, config=config), record)


def choose_sizes(record: Record, layers, config: LtdConfig) -> np.ndarray:
    """Compute the size policy's choice after 0, 1, ... draft steps: size index int32 [N, S]."""
    check_scale(record, config)
    return _in_chunks(functools.partial(sizes_of, layers, config=config), record)


@functools.partial(jax.jit, static_argnames="config")
def depths_of(
    layers, scores, context, beyond: features.Beyond = features.NOTHING, *, config: LtdConfig
):
    """Compute `choose_depths` from scores [C, P] and contexts int32 [C]; compiled.

    Args:
      beyond: what the networks observe beyond these, [C, S, ...].
    """
    depths = jnp.array(config.depths, jnp.int32)

    def goes_on(steps):
        now = jax.tree.map(lambda x: x[:, steps], beyond)
        seen = features.depth_observation(
            scores, context, steps, config.width, config.observes, now
        )
        return jnp.argmax(mlp(layers, seen, config.activation), axis=-1) == 1

    stops = ~jax.lax.map(goes_on, depths)
    return jnp.where(stops.any(0), depths[jnp.argmax(stops, axis=0)], config.steps)


@functools.partial(jax.jit, static_argnames="config")
def sizes_of(
    layers, scores, context, beyond: features.Beyond = features.NOTHING, *, config: LtdConfig
):
    """Compute `choose_sizes`, from the arguments of `depths_of`; compiled."""

    def choose(steps):
        if config.sees == "pool":
            now = jax.tree.map(lambda x: x[:, steps], beyond)
            seen = features.size_observation(
                scores, context, steps, config.width, config.observes, now
            )
            available = jnp.broadcast_to(1 + features.pool_size(config.width, steps), context.shape)
        else:
            seen = features.tree_observation(scores, context, config.observes)
            available = 1 + jnp.sum(scores > -jnp.inf, axis=-1)
        logits = mlp(layers, seen, config.activation)
        return jnp.argmax(
            jnp.where(features.allowed_sizes(config.sizes, available), logits, -jnp.inf), axis=-1
        )

    return jax.lax.map(choose, jnp.arange(config.steps + 1)).T.astype(jnp.int32)


def _in_chunks(decide: Callable, record: Record) -> np.ndarray:
    count = len(record.context)
    at = np.minimum(np.arange(-(-count // CHUNK) * CHUNK), count - 1).reshape(-1, CHUNK)
    arrays = (record.scores, record.context, features.Beyond(record.entropy, record.hidden))
    found = [np.asarray(decide(*jax.tree.map(lambda x, rows=rows: x[rows], arrays))) for rows in at]
    return np.concatenate(found)[:count]
