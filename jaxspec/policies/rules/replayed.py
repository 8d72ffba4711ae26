"""Repeat the decisions of an earlier decode, to measure the time of the policy's own computation.

Under draft-invariant acceptance the same prompt and seed give the same text, so the same decisions
give the same rounds.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig
from jaxspec.policies.registry import tagged


@tagged("replay")
@dataclasses.dataclass(frozen=True)
class ReplayConfig(PolicyConfig):
    """Config of a replay.

    Attributes:
      acts: decisions to repeat, names of `Acts` without `keep` and `carry`.
      blocks: block sizes that drafting is compiled for, see `Functions`.
    """

    acts: tuple[str, ...] = ()
    blocks: tuple[int, ...] = ()
    score_scale: float | None = dataclasses.field(default=None, kw_only=True)

    def functions(self) -> Functions:
        return _functions(self)


@tagged("replay-decisions")
class Decisions(flax.struct.PyTreeNode):
    """The decisions of R rounds, see `PerRound`.

    Attributes:
      steps, rows: int32 [R].
      block: int32 [].
    """

    steps: jax.Array
    rows: jax.Array
    block: jax.Array


def make_replay(policy: Policy, per_round: Any, room: int) -> Policy:
    """Make a policy that repeats the decisions of `policy` for one sequence.

    Args:
      policy: the policy that decided.
      per_round: the rounds' `jaxspec.call.output.PerRound`.
      room: rounds of the longest decode; decodes with the same number share a compilation.

    Raises:
      ValueError: the policy picks nodes, which `per_round` does not record.
    """
    functions = policy.config.functions()
    act = functions.act
    if act.keep is not None:
        raise ValueError(
            "the policy picks nodes of each level, which cannot be replayed: leave it out"
        )
    acts = tuple(
        name for name in ("block", "draft", "deeper", "rows") if getattr(act, name) is not None
    )

    def padded(values) -> jax.Array:
        return jnp.asarray(
            np.pad(np.asarray(values, np.int32), (0, room - len(values)), constant_values=1)
        )

    block = jnp.int32(0 if per_round.block is None else per_round.block)
    decisions = Decisions(padded(per_round.steps), padded(per_round.rows), block)
    return Policy(ReplayConfig(policy.config.widths, acts, functions.blocks), decisions)


@functools.lru_cache
def _functions(config: ReplayConfig) -> Functions:
    answers = {
        "block": lambda past, i, seen: jnp.broadcast_to(past.block, seen.live.shape),
        "draft": lambda past, i, seen: past.steps[i] >= 0,
        "deeper": lambda past, i, seen: jnp.broadcast_to(
            seen.steps < past.steps[i], seen.live.shape
        ),
        "rows": lambda past, i, seen: past.rows[i],
    }
    acts = Acts(**{name: answers[name] for name in config.acts})
    return Functions(
        lambda shape: jnp.int32(0), acts, lambda past, i, outcome: i + 1, blocks=config.blocks
    )
