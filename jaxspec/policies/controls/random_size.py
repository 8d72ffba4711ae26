"""A control: depth and rows at random, each with given probabilities, whatever the round looks
like.

With the frequencies of another policy's actions it draws as that one does on average and knows
nothing: what the other gains beyond it, it gains by choosing when.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.protocol import Acts, Functions, Policy, Settings


@dataclasses.dataclass(frozen=True)
class RandomSettings(Settings):
    """The actions that are drawn.

    Attributes:
      steps: draft steps after the root's; rows: verified rows, the root included. Empty: not
        decided here.
      seed: of the draws.
    """

    steps: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    seed: int = 0

    def functions(self) -> Functions:
        return _functions(self)


@flax.struct.dataclass
class Frequencies:
    """Log-probabilities of the actions. Attributes: steps: float32 [S]. rows: float32 [R]."""

    steps: jax.Array
    rows: jax.Array


def make_random(
    steps: Mapping[int, float] | None = None,
    rows: Mapping[int, float] | None = None,
    widths: tuple[int, ...] = (),
    seed: int = 0,
) -> Policy:
    """Draws of `steps` and `rows`, {action: weight} each, independent of one another, of the round
    and of the sequence.

    Raises:
      ValueError: no action at all, or weights that are no frequencies.
    """
    steps, rows = dict(steps or {}), dict(rows or {})
    weights = [np.array(list(x.values()), np.float64) for x in (steps, rows)]
    if not steps and not rows:
        raise ValueError(
            "a random policy needs frequencies of steps, of rows or of both: give some"
        )
    if any(x.size and not (np.all(x >= 0) and 0 < x.sum() < np.inf) for x in weights):
        raise ValueError(
            f"frequencies are {steps} and {rows}: give numbers of at least 0, not all of them 0"
        )
    with np.errstate(divide="ignore"):
        logs = [jnp.asarray(np.log(x / x.sum()) if x.size else x, jnp.float32) for x in weights]
    return Policy(
        RandomSettings(tuple(widths), tuple(steps), tuple(rows), seed), Frequencies(*logs)
    )


@functools.lru_cache
def _functions(settings: RandomSettings) -> Functions:
    def drawn(actions, logprob, key, shape):
        return jnp.asarray(actions, jnp.int32)[jax.random.categorical(key, logprob, shape=shape)]

    def deeper(frequencies, key, seen):
        # One draw a round: the key changes between rounds only.
        return seen.steps < drawn(
            settings.steps, frequencies.steps, jax.random.fold_in(key, 0), seen.live.shape
        )

    def rows(frequencies, key, seen):
        return drawn(settings.rows, frequencies.rows, jax.random.fold_in(key, 1), seen.live.shape)

    def observe(frequencies, key, outcome):
        return jax.random.fold_in(key, 2)

    acts = Acts(deeper=deeper if settings.steps else None, rows=rows if settings.rows else None)
    return Functions(lambda shape: jax.random.PRNGKey(settings.seed), acts, observe)
