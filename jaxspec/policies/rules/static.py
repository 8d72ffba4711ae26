"""A baseline with the same depth and the same number of rows in every round.

The constants come from a grid search (Learning to Draft's baseline), or from another policy's most
frequent action. Rounds read both numbers as arrays, so that a search over them compiles once.
"""

from __future__ import annotations

import dataclasses
import functools
import re

import flax.struct
import jax
import jax.numpy as jnp

from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.registry import register, tagged


@tagged("static")
@dataclasses.dataclass(frozen=True)
class StaticConfig(PolicyConfig):
    """The quantities that are constant.

    Attributes:
      depth: every round takes `Constants.steps` draft steps; False takes as many as the tree has.
      rows: every round verifies `Constants.rows` rows; False verifies the whole tree.
    """

    depth: bool = True
    rows: bool = True
    score_scale: float | None = dataclasses.field(default=None, kw_only=True)

    def functions(self) -> Functions:
        return _functions(self)


@tagged("static-constants")
class Constants(flax.struct.PyTreeNode):
    """The constants that rounds read.

    Attributes:
      steps: int32 [], draft steps after the root's (LTD's D).
      rows: int32 [], verified rows, the root included.
    """

    steps: jax.Array
    rows: jax.Array


def make_static(
    steps: int | None = None, rows: int | None = None, widths: tuple[int, ...] = ()
) -> Policy:
    """Make a policy of constants.

    Args:
      steps: draft steps after the root's; None takes as many as the tree has.
      rows: verified rows, the root included; None verifies all.
      widths: see `PolicyConfig`.

    Raises:
      ValueError: neither steps nor rows are given, or one is out of range.
    """
    if steps is None and rows is None:
        raise ValueError("a static policy needs steps, rows or both: give one")
    if (steps or 0) < 0 or (rows is not None and rows < 1):
        raise ValueError(
            f"steps is {steps} and rows is {rows}: give at least 0 draft steps and at least 1 row"
        )
    config = StaticConfig(tuple(widths), steps is not None, rows is not None)
    return Policy(config, Constants(jnp.int32(steps or 0), jnp.int32(rows or 0)))


def parse_static(text: str) -> Policy:
    """Make the policy of `static:TEXT`.

    `4x24` means 4 draft steps and 24 rows in every round; `4x` and `x24` leave the other number to
    the tree.

    Raises:
      ValueError: the text has another form.
    """
    found = re.fullmatch(r"(\d*)x(\d*)", text, re.ASCII)
    if not found or text == "x":
        raise ValueError(
            f"'static:{text}' is no policy: write static:STEPSxROWS, as static:4x24 or static:x24"
        )
    return make_static(*(int(number) if number else None for number in found.groups()))


@functools.lru_cache
def _functions(config: StaticConfig) -> Functions:
    def deeper(constants, state, seen):
        return jnp.broadcast_to(seen.steps < constants.steps, seen.live.shape)

    def rows(constants, state, seen):
        return constants.rows

    acts = Acts(deeper=deeper if config.depth else None, rows=rows if config.rows else None)
    return Functions(lambda shape: (), acts, keep_state)


register("static", parse_static, argument="STEPSxROWS")
