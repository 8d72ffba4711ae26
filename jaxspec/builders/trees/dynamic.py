"""EAGLE-2's dynamic tree: draft from the best W nodes of a level, verify the best of all levels.

This follows Li et al. 2024 (EAGLE-2, section 4) and the released code of EAGLE-3. The root's W best
tokens are the first level. Each of the level's W nodes proposes its W best tokens, and the next
step drafts from the best W of these W * W candidates. All candidates stay in the pool; its best
N - 1 become the tree. N counts the root, as the reference's `total_token` does.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar

import jax
import jax.numpy as jnp

from jaxspec.builders.growth import Growth, Proposes, StepCandidates, grow_at_once
from jaxspec.builders.protocol import Builder, Unsuitable, check_choices, check_count, check_width
from jaxspec.builders.trees.rows import choose_rows, make_pool, put_nodes
from jaxspec.core.state import Nodes, Pool, Tree

# The width of EAGLE-3. More nodes rarely enter trees of up to 64 rows.
MAX_WIDTH = 10


@dataclasses.dataclass(frozen=True)
class Dynamic(Builder):
    """See `dynamic`."""

    name: ClassVar[str] = "dynamic"
    width: int | None = None

    def __post_init__(self) -> None:
        check_count("width", self.width)

    def check(self, proposes: Proposes) -> None:
        check_choices(self, proposes)
        check_width(self.width, proposes.vocab_size)
        if proposes.steps and proposes.slots > 1:
            raise Unsuitable(
                "builder 'dynamic' needs a drafter of one token at a time, or of one block"
            )

    def check_drawn(self, growth: Growth) -> None:
        super().check_drawn(growth._replace(nodes=1))

    def make_growth(self, proposes: Proposes) -> Growth:
        # The published trees draft from 10 nodes per level for 60 rows; smaller trees need fewer.
        width = self.width or max(min(MAX_WIDTH, -(-proposes.budget // 6)), 2)
        depth = min(proposes.depth if proposes.steps else proposes.levels, proposes.budget - 1)
        growth = grow_dynamic(min(width, proposes.vocab_size), depth, proposes.budget)
        return growth if proposes.steps else _grow_over_levels(growth)


def dynamic(width: int | None = None) -> Dynamic:
    """Make EAGLE-2's tree, for drafters of one token at a time or of one proposal per round.

    Args:
      width: W, nodes per level that are drafted from, and candidates of each; None is a sixth of
        the budget, between 2 and 10.
    """
    return Dynamic(width)


def grow_dynamic(width: int, depth: int, budget: int) -> Growth:
    """Make the growth of dynamic trees.

    Args:
      width: W, nodes per level that are drafted from, and candidates of each.
      depth: levels of candidates, one more than the reference's `depth`, which counts the drafter's
        forwards after the first.
      budget: rows to verify, the root included.
    """
    size = width + (depth - 1) * width * width
    rows = min(budget, 1 + size)

    def frontier(token, source, depth, node, score, depth_limit):
        live = (score > -jnp.inf) & (depth < depth_limit)
        return Nodes(token, source, jnp.full(width, depth), node, live)

    def init(offered: StepCandidates, depth_limit: jax.Array) -> tuple[Pool, Nodes]:
        token, index = offered.token[0, 0], jnp.arange(width)
        score = jnp.where(depth_limit > 0, offered.logprob[0, 0], -jnp.inf)
        below_root, first = jnp.full(width, -1), jnp.ones(width, jnp.int32)
        pool = put_nodes(make_pool(size), 0, token, below_root, first, score)
        return pool, frontier(token, 0 * index, 1, index, score, depth_limit)

    def grow(
        pool: Pool, nodes: Nodes, offered: StepCandidates, step: jax.Array, depth_limit: jax.Array
    ) -> tuple[Pool, Nodes]:
        at, depth = width + step * width * width, step + 2
        above = jnp.where(nodes.live, pool.logprob[nodes.node], -jnp.inf)
        score = (above[:, None] + offered.logprob[:, 0]).reshape(-1)
        token, parent = offered.token[:, 0].reshape(-1), jnp.repeat(nodes.node, width)
        pool = put_nodes(pool, at, token, parent, jnp.full(width * width, depth), score)
        best, choice = jax.lax.top_k(score, width)
        source = 1 + step * width + choice // width
        return pool, frontier(token[choice], source, depth, at + choice, best, depth_limit)

    finish = functools.partial(choose_rows, rows=rows, longest=depth)
    return Growth(rows, width, depth, 1, width, depth - 1, init, grow, finish)


def _grow_over_levels(growth: Growth) -> Growth:
    """Grow the same tree from one proposal, with equal candidates under all nodes of a depth."""

    def build(
        token: jax.Array, logprob: jax.Array, root: jax.Array, depth_limit: jax.Array
    ) -> Tree:
        def offered(depth: int | jax.Array, nodes: int) -> StepCandidates:
            shape = (nodes, 1, growth.candidates)
            return StepCandidates(*(jnp.broadcast_to(x[depth], shape) for x in (token, logprob)))

        def step(carry: tuple[Pool, Nodes], i: jax.Array) -> tuple[tuple[Pool, Nodes], None]:
            return growth.grow(*carry, offered(i + 1, growth.nodes), i, depth_limit), None

        def steps(unroll: int | bool, start: tuple[Pool, Nodes]) -> Pool:
            return jax.lax.scan(step, start, jnp.arange(growth.steps), unroll=unroll)[0][0]

        # On a GPU, a loop splits the round's command buffer and is driven by the host.
        pool = jax.lax.platform_dependent(
            growth.init(offered(0, 1), depth_limit),
            cpu=functools.partial(steps, 1),
            default=functools.partial(steps, True),
        )
        return growth.finish(pool, root)

    return grow_at_once(
        build, rows=growth.rows, candidates=growth.candidates, longest=growth.longest
    )
