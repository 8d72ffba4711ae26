"""Constants: the same depth and the same number of rows in every round.

What grid search finds (Learning to Draft's baseline), and the control that repeats another policy's
commonest action. Both numbers are read by the rounds, so that a search over them compiles once.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, Settings, unchanged


@dataclasses.dataclass(frozen=True)
class StaticSettings(Settings):
    """What is kept constant.

    Attributes:
      depth, rows: whether `Constants` of that name hold; else the drafter or the tree decides.
    """

    depth: bool = True
    rows: bool = True

    def functions(self) -> Functions:
        return _functions(self)


@flax.struct.dataclass
class Constants:
    """Attributes: steps: int32 [], draft steps after the root's (LTD's D). rows: int32 [],
    verified, the root included.
    """

    steps: jax.Array
    rows: jax.Array


def make_static(
    steps: int | None = None, rows: int | None = None, widths: tuple[int, ...] = ()
) -> Policy:
    """Rounds of `steps` draft steps after the root's (None: as many as the tree has) that verify
    `rows` rows (None: all).

    Raises:
      ValueError: neither is given, or one is out of range.
    """
    if steps is None and rows is None:
        raise ValueError("a static policy needs steps, rows or both: give one")
    if (steps or 0) < 0 or (rows is not None and rows < 1):
        raise ValueError(
            f"steps is {steps} and rows is {rows}: give at least 0 draft steps and at least 1 row"
        )
    settings = StaticSettings(tuple(widths), steps is not None, rows is not None)
    return Policy(settings, Constants(jnp.int32(steps or 0), jnp.int32(rows or 0)))


@functools.lru_cache
def _functions(settings: StaticSettings) -> Functions:
    def deeper(constants, state, seen):
        return jnp.broadcast_to(seen.steps < constants.steps, seen.live.shape)

    def rows(constants, state, seen):
        return constants.rows

    acts = Acts(deeper=deeper if settings.depth else None, rows=rows if settings.rows else None)
    return Functions(lambda shape: (), acts, unchanged)
