"""A baseline that draws depth and rows at random with given probabilities.

Given the frequencies of another policy's actions, it acts like that policy on average, but ignores
the round. The other policy's gain over this baseline comes from choosing the right moment.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig
from jaxspec.policies.registry import tagged


@tagged("random")
@dataclasses.dataclass(frozen=True)
class RandomConfig(PolicyConfig):
    """The actions to draw from.

    Attributes:
      steps: numbers of draft steps after the root's; () does not decide about them.
      rows: numbers of verified rows, the root included; () does not decide about them.
      seed: of the draws.
    """

    steps: tuple[int, ...] = ()
    rows: tuple[int, ...] = ()
    seed: int = 0
    score_scale: float | None = dataclasses.field(default=None, kw_only=True)

    def functions(self) -> Functions:
        return _functions(self)


@tagged("random-frequencies")
class Frequencies(flax.struct.PyTreeNode):
    """Log-probabilities of the actions.

    Attributes:
      steps: float32 [S].
      rows: float32 [R].
    """

    steps: jax.Array
    rows: jax.Array


def make_random(
    steps: Mapping[int, float] | None = None,
    rows: Mapping[int, float] | None = None,
    widths: tuple[int, ...] = (),
    seed: int = 0,
) -> Policy:
    """Make a policy that draws `steps` and `rows`, each {action: weight}.

    The draws are independent of each other, of the round and of the sequence.

    Raises:
      ValueError: there is no action, or weights are not frequencies.
    """
    steps, rows = dict(steps or {}), dict(rows or {})
    weights = [np.array(list(x.values()), np.float64) for x in (steps, rows)]
    if not steps and not rows:
        raise ValueError(
            "a random policy needs frequencies of steps, of rows or of both: give some"
        )
    if any(x.size and not (np.all(x >= 0) and 0 < x.sum() < np.inf) for x in weights):
        raise ValueError(
            f"frequencies are {steps} and {rows}: give numbers of at least 0, one of them above 0"
        )
    with np.errstate(divide="ignore"):
        logs = [jnp.asarray(np.log(x / x.sum()) if x.size else x, jnp.float32) for x in weights]
    return Policy(RandomConfig(tuple(widths), tuple(steps), tuple(rows), seed), Frequencies(*logs))


@functools.lru_cache
def _functions(config: RandomConfig) -> Functions:
    def draw_action(actions, logprob, key, shape):
        return jnp.asarray(actions, jnp.int32)[jax.random.categorical(key, logprob, shape=shape)]

    def deeper(frequencies, key, seen):
        # Draw once per round: the key changes only between rounds.
        return seen.steps < draw_action(
            config.steps, frequencies.steps, jax.random.fold_in(key, 0), seen.live.shape
        )

    def rows(frequencies, key, seen):
        return draw_action(
            config.rows, frequencies.rows, jax.random.fold_in(key, 1), seen.live.shape
        )

    def observe(frequencies, key, outcome):
        return jax.random.fold_in(key, 2)

    acts = Acts(deeper=deeper if config.steps else None, rows=rows if config.rows else None)
    return Functions(lambda shape: jax.random.PRNGKey(config.seed), acts, observe)
