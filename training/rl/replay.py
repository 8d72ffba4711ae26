"""Policies on a record: what they decide at every position, and what whole texts then take. All
times are modelled.
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
from training.replay.records import Record

# Positions that one call of the device decides about.
CHUNK = 1024


class Walk(NamedTuple):
    """Texts under some decisions: tokens, modelled seconds and rounds of each prompt; steps and
    size index of each round.
    """

    tokens: np.ndarray
    seconds: np.ndarray
    rounds: np.ndarray
    steps: np.ndarray
    sizes: np.ndarray

    def figures(self, record: Record) -> dict[str, float]:
        """Tokens per second (total over total), the mean of the prompts' own, tokens a round, mean
        steps and rows.
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
      seconds: [N, S, V], see `RoundCosts.seconds`. steps, sizes: int [N] or numbers, each
        position's decision, were it a root.
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
    return Walk(tokens, taken, rounds.astype(int), steps[visited], sizes[visited])


def best_static(record: Record, seconds: np.ndarray) -> tuple[int, int]:
    """The constant (steps, size index) with the most tokens per second: grid search."""
    pairs = [(d, v) for d in range(record.committed.shape[1]) for v in range(len(record.sizes))]
    rates = [walk(record, seconds, d, v).figures(record)["tokens_per_second"] for d, v in pairs]
    return pairs[int(np.argmax(rates))]


def oracle(record: Record, seconds: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Each position's (steps, size index), int [N], on the fastest way to its text's end: no policy
    can be faster.

    Rounds lead from positions to later ones, so the least time to the end follows backwards from
    it.
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
    """(steps, size index) int [N] of networks {"depth": layers, "size": layers}; those of `static`
    for one that is missing.
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


def choose_depths(record: Record, layers, config: LtdConfig) -> np.ndarray:
    """int32 [N], draft steps that the depth policy takes at every position."""
    return _in_chunks(functools.partial(depths_of, layers, config=config), record)


def choose_sizes(record: Record, layers, config: LtdConfig) -> np.ndarray:
    """int32 [N, S], index of the rows that the size policy verifies after 0, 1, ... draft steps."""
    return _in_chunks(functools.partial(sizes_of, layers, config=config), record)


@functools.partial(jax.jit, static_argnames="config")
def depths_of(layers, scores, context, *, config: LtdConfig):
    """`choose_depths` of scores [C, P] and contexts int32 [C], compiled."""
    depths = jnp.array(config.depths, jnp.int32)

    def goes_on(steps):
        seen = features.depth_observation(scores, context, steps, config.width, config.observes)
        return jnp.argmax(mlp(layers, seen, config.activation), axis=-1) == 1

    stops = ~jax.lax.map(goes_on, depths)
    return jnp.where(stops.any(0), depths[jnp.argmax(stops, axis=0)], config.steps)


@functools.partial(jax.jit, static_argnames="config")
def sizes_of(layers, scores, context, *, config: LtdConfig):
    """`choose_sizes` of scores [C, P] and contexts int32 [C], compiled."""

    def choose(steps):
        if config.sees == "pool":
            seen = features.size_observation(scores, context, steps, config.width, config.observes)
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
    return np.concatenate(
        [np.asarray(decide(record.scores[rows], record.context[rows])) for rows in at]
    )[:count]
