"""A fixed tree grown in steps: the static tree for drafters whose proposals depend on what stands
before them.
"""

from __future__ import annotations

import functools

import jax.numpy as jnp
import numpy as np

from jaxspec.builders.static import Paths
from jaxspec.builders.stepwise import Stepper, empty_pool
from jaxspec.core.state import Nodes


@functools.lru_cache
def make_fixed(paths: Paths, slots: int) -> Stepper:
    """The tree of `paths` (rank paths, see `static.make_paths`), for a drafter that proposes
    `slots` tokens after a node.

    Nodes at depths that are multiples of `slots` are drafted from where they have children; those
    up to `slots` levels below take their ranks from what was proposed there, whatever stands
    between.
    """
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
    # Per step, and once more after the last: the nodes drafted from, and the slots that proposed
    # them.
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
    between = jnp.asarray(np.array(above, np.int32).reshape(*node.shape, slots - 1))
    node, source, there = (jnp.asarray(table) for table in (node, source, there))

    def fill(pool, offers, live, number, depth_limit):
        """The pool with the nodes of block `number`."""
        token, steps_down = (
            x[lane % x.shape[0], slot, rank] for x in (offers.token, offers.logprob)
        )
        steps_down = jnp.where(
            live[lane % live.shape[0]] & (depth <= depth_limit), steps_down, -jnp.inf
        )
        score = pool.logprob
        for k in range(slots):
            above = jnp.where(parent < 0, 0.0, score[parent])
            score = jnp.where((block == number) & (slot == k), above + steps_down, score)
        return pool.replace(token=jnp.where(block == number, token, pool.token), logprob=score)

    def frontier(pool, step, depth_limit):
        chosen = node[step]
        live = there[step] & (pool.logprob[chosen] > -jnp.inf) & (pool.depth[chosen] < depth_limit)
        return Nodes(
            pool.token[chosen],
            source[step],
            pool.depth[chosen],
            chosen,
            live,
            pool.token[between[step]],
        )

    def begin(offers, depth_limit):
        pool = empty_pool(len(paths)).replace(parent=jnp.asarray(parent), depth=jnp.asarray(depth))
        pool = fill(pool, offers, jnp.ones(1, bool), 0, depth_limit)
        return pool, frontier(pool, 0, depth_limit)

    def grow(pool, nodes, offers, step, depth_limit):
        pool = fill(pool, offers, nodes.live, step + 1, depth_limit)
        return pool, frontier(pool, step + 1, depth_limit)

    return Stepper(
        1 + len(paths), int(rank.max()) + 1, int(depth.max()), slots, width, steps, begin, grow
    )
