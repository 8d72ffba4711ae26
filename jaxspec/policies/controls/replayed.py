"""Rounds of an earlier decode once more, without asking anybody: what a policy's own computation
costs is the difference.

Under draft-invariant acceptance the same prompt and seed give the same text, so that the same
decisions give the same rounds.
"""

from __future__ import annotations

import dataclasses
import functools

import flax.struct
import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.protocol import Acts, Functions, Policy, Settings


@dataclasses.dataclass(frozen=True)
class ReplaySettings(Settings):
    """Which decisions are repeated; the names of `Acts`, without `keep` and `carry`."""

    acts: tuple[str, ...] = ()

    def functions(self) -> Functions:
        return _functions(self)


@flax.struct.dataclass
class Decisions:
    """What is repeated. Attributes: steps, rows: int32 [R], of each round, see `PerRound`. block:
    int32 [].
    """

    steps: jax.Array
    rows: jax.Array
    block: jax.Array


def make_replay(policy: Policy, per_round, room: int) -> Policy:
    """The policy that decides once more what `policy` decided for one sequence.

    Args:
      per_round: a `jaxspec.engine.output.PerRound`. room: rounds of the longest decode; equal ones
        share a compilation.

    Raises:
      ValueError: the policy picks nodes, which its rounds' counts do not tell.
    """
    act = policy.settings.functions().act
    if act.keep is not None:
        raise ValueError(
            "the policy picks nodes of each level: its rounds cannot be repeated from their counts"
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
    return Policy(ReplaySettings(policy.settings.widths, acts), decisions)


@functools.lru_cache
def _functions(settings: ReplaySettings) -> Functions:
    answers = {
        "block": lambda told, i, seen: jnp.broadcast_to(told.block, seen.live.shape),
        "draft": lambda told, i, seen: told.steps[i] >= 0,
        "deeper": lambda told, i, seen: jnp.broadcast_to(
            seen.steps < told.steps[i], seen.live.shape
        ),
        "rows": lambda told, i, seen: told.rows[i],
    }
    acts = Acts(**{name: answers[name] for name in settings.acts})
    return Functions(lambda shape: jnp.int32(0), acts, lambda told, i, outcome: i + 1)
