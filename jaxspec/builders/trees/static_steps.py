"""Grow a fixed tree in steps, for drafters whose proposals depend on the tokens before them.

The drafter drafts from nodes with children at depths that are multiples of its `slots`. Nodes up to
`slots` levels below take their ranks from that proposal, whatever the tokens in between.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.growth import Growth, StepCandidates
from jaxspec.builders.trees.paths import Paths
from jaxspec.builders.trees.rows import choose_rows, make_pool
from jaxspec.core.state import Nodes, Pool


class _Tables(NamedTuple):
    """Static facts about the P nodes of the tree and the M nodes of every step, numpy int32.

    Attributes:
      parent: [P], index of each node's parent; -1 below the root.
      depth: [P].
      rank: [P].
      block: [P], step that proposes each node.
      slot: [P], slot that proposes each node.
      lane: [P], index among the step's nodes of the one that each node is proposed after.
      node: [steps + 1, M], nodes that each step drafts from; the last row is empty.
      source: [steps + 1, M], slots that proposed these nodes.
      there: bool [steps + 1, M], whether the entry is in use.
      between: [steps + 1, M, slots - 1], nodes between each and the one it was proposed after.
    """

    parent: np.ndarray
    depth: np.ndarray
    rank: np.ndarray
    block: np.ndarray
    slot: np.ndarray
    lane: np.ndarray
    node: np.ndarray
    source: np.ndarray
    there: np.ndarray
    between: np.ndarray


def grow_static(paths: Paths, slots: int) -> Growth:
    """Make the growth of the tree of `paths` for a drafter of `slots` tokens per proposal."""
    tables = _tabulate(paths, slots)
    steps, width = len(tables.node) - 1, tables.node.shape[1]
    parent, depth, block = tables.parent, tables.depth, tables.block

    def fill(
        pool: Pool, offered: StepCandidates, live: jax.Array, number: jax.Array, limit: jax.Array
    ) -> Pool:
        """Put the nodes of block `number` into the pool."""
        lane = tables.lane % live.shape[0]
        token, down = (x[lane, tables.slot, tables.rank] for x in (offered.token, offered.logprob))
        down = jnp.where(live[lane] & (depth <= limit), down, -jnp.inf)
        score = pool.logprob
        for k in range(slots):
            above = jnp.where(parent < 0, 0.0, score[parent])
            score = jnp.where((block == number) & (tables.slot == k), above + down, score)
        return pool.replace(token=jnp.where(block == number, token, pool.token), logprob=score)

    def frontier(pool: Pool, step: jax.Array, depth_limit: jax.Array) -> Nodes:
        chosen, source, there, between = (
            jnp.asarray(table)[step]
            for table in (tables.node, tables.source, tables.there, tables.between)
        )
        live = there & (pool.logprob[chosen] > -jnp.inf) & (pool.depth[chosen] < depth_limit)
        before = pool.token[between]
        return Nodes(pool.token[chosen], source, pool.depth[chosen], chosen, live, before)

    def init(offered: StepCandidates, depth_limit: jax.Array) -> tuple[Pool, Nodes]:
        pool = make_pool(len(paths)).replace(parent=jnp.asarray(parent), depth=jnp.asarray(depth))
        pool = fill(pool, offered, jnp.ones(1, bool), 0, depth_limit)
        return pool, frontier(pool, 0, depth_limit)

    def grow(
        pool: Pool, nodes: Nodes, offered: StepCandidates, step: jax.Array, depth_limit: jax.Array
    ) -> tuple[Pool, Nodes]:
        pool = fill(pool, offered, nodes.live, step + 1, depth_limit)
        return pool, frontier(pool, step + 1, depth_limit)

    rows, longest = 1 + len(paths), int(depth.max())
    finish = functools.partial(choose_rows, rows=rows, longest=longest)
    candidates = int(tables.rank.max()) + 1
    return Growth(rows, candidates, longest, slots, width, steps, init, grow, finish)


def _tabulate(paths: Paths, slots: int) -> _Tables:
    depth = np.array([len(path) for path in paths], np.int32)
    block, slot = (depth - 1) // slots, (depth - 1) % slots
    rank = np.array([path[-1] for path in paths], np.int32)
    index = {(): -1} | {path: i for i, path in enumerate(paths)}
    parent = np.array([index[path[:-1]] for path in paths], np.int32)
    bases = [path[: slots * b] for path, b in zip(paths, block, strict=True)]
    steps = int(block.max())
    drafted = [
        sorted({base for base, b in zip(bases, block, strict=True) if b == step + 1})
        for step in range(steps)
    ]
    lane = np.array(
        [drafted[b - 1].index(base) if b else 0 for base, b in zip(bases, block, strict=True)],
        np.int32,
    )
    width = max(map(len, drafted), default=1)
    node = np.zeros((steps + 1, width), np.int32)
    source, there = np.zeros_like(node), np.zeros_like(node, bool)
    for step, chosen in enumerate(drafted):
        node[step, : len(chosen)] = [index[path] for path in chosen]
        there[step, : len(chosen)] = True
        first = 0 if step == 0 else slots + (step - 1) * width * slots
        source[step] = first + lane[node[step]] * slots + slots - 1
    above = [
        [index.get(paths[i][: depth[i] - slots + 1 + k], 0) for k in range(slots - 1)]
        for i in node.reshape(-1)
    ]
    between = np.array(above, np.int32).reshape(*node.shape, slots - 1)
    return _Tables(parent, depth, rank, block, slot, lane, node, source, there, between)
