"""The chain: the best candidate of every depth (DFlash's draft)."""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.growth import Growth, Proposes, StepCandidates, grow_at_once
from jaxspec.builders.protocol import Builder, Unsuitable
from jaxspec.builders.trees.rows import choose_rows, make_pool, put_nodes
from jaxspec.core.state import Nodes, Pool, Tree
from jaxspec.core.tree import assemble, chain_words

CHAIN_SCORES = ("logprob", "confidence")


@dataclasses.dataclass(frozen=True)
class Chain(Builder):
    """See `chain`."""

    name: ClassVar[str] = "chain"
    score: str = "logprob"

    def __post_init__(self) -> None:
        if self.score not in CHAIN_SCORES:
            choose = " or ".join(repr(name) for name in CHAIN_SCORES)
            raise ValueError(f"score {self.score!r} is not for a chain: choose {choose}")

    def check(self, proposes: Proposes) -> None:
        if self.score == "confidence" and not proposes.confident:
            raise Unsuitable("builder 'chain+confidence' needs a drafter with a confidence head")

    def make_growth(self, proposes: Proposes) -> Growth:
        if proposes.steps:
            growth = grow_chain(proposes.slots, min(proposes.depth, proposes.budget - 1))
        else:
            rows = min(proposes.budget, 1 + proposes.levels)
            build = functools.partial(build_chain, rows=rows)
            growth = grow_at_once(build, rows=rows, candidates=1, longest=rows - 1)
        return growth._replace(confidence=self.score == "confidence")


def chain(score: str = "logprob") -> Chain:
    """Make a chain: the best token of every depth, for every drafter.

    Args:
      score: where the paths' probabilities come from, which policies and outputs read: `logprob`,
        the drafter's distributions, or `confidence`, its confidence head (DSpark).
    """
    return Chain(score)


def build_chain(
    token: jax.Array, logprob: jax.Array, root: jax.Array, depth_limit: jax.Array, rows: int
) -> Tree:
    """Build one chain (no batch axis) of at most `rows` rows.

    Args:
      token, logprob: int32 and float32 [D, C], ranked candidates per depth; D >= rows - 1, C >= 1.
      root: int32 [], token of row 0.
      depth_limit: int32 [], deepest node allowed.
      rows: N, root included; static.
    """
    usable = (logprob[: rows - 1, 0] > -jnp.inf) & (jnp.arange(rows - 1) < depth_limit)
    row = np.arange(rows, dtype=np.int32)
    return assemble(
        token=jnp.append(root, token[: rows - 1, 0]),
        parent=jnp.asarray(row - 1),
        depth=jnp.asarray(row),
        logprob=jnp.append(jnp.float32(0), jnp.cumsum(logprob[: rows - 1, 0])),
        size=1 + jnp.sum(jnp.cumprod(usable), dtype=jnp.int32),
        words=chain_words(rows),
    )


def grow_chain(slots: int, depth: int) -> Growth:
    """Make the growth of a chain in steps: `slots` tokens per step, `depth` in all."""
    steps = -(-depth // slots) - 1

    def extend(
        pool: Pool, offered: StepCandidates, at: jax.Array, depth_limit: jax.Array
    ) -> tuple[Pool, Nodes]:
        token, logprob = offered.token[0, :, 0], offered.logprob[0, :, 0]
        index = at + jnp.arange(slots)
        usable = (logprob > -jnp.inf) & (index < depth_limit)
        last = jnp.where(at > 0, pool.logprob[jnp.maximum(at - 1, 0)], 0.0)
        score = jnp.where(jnp.cumprod(usable) > 0, last + jnp.cumsum(logprob), -jnp.inf)
        pool = put_nodes(pool, at, token, index - 1, index + 1, score)
        source = slots * jnp.ones(1, jnp.int32) * (at // slots) + slots - 1
        node = jnp.full(1, at + slots - 1)
        live = jnp.isfinite(score[-1:]) & (at + slots < depth_limit)
        return pool, Nodes(token[-1:], source, node + 1, node, live, offered.token[:, :-1, 0])

    def init(offered: StepCandidates, depth_limit: jax.Array) -> tuple[Pool, Nodes]:
        return extend(make_pool(slots * (steps + 1)), offered, jnp.int32(0), depth_limit)

    def grow(
        pool: Pool, nodes: Nodes, offered: StepCandidates, step: jax.Array, depth_limit: jax.Array
    ) -> tuple[Pool, Nodes]:
        return extend(pool, offered, slots * (step + 1), depth_limit)

    finish = functools.partial(choose_rows, rows=depth + 1, longest=depth)
    return Growth(depth + 1, 1, depth, slots, 1, steps, init, grow, finish)
