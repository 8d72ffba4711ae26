"""Any fixed tree, given as the rank paths of its nodes: Medusa's `choices`.

`[[0], [0, 0], [1]]` is the best candidate of depth 1, under it the best of depth 2, and the second
best of depth 1. Every node must be listed: `[0, 1]` requires `[0]`. The set of nodes is static;
their tokens and their order follow the round's candidates. Rows are sorted by score as in every
tree of jaxspec, equal ones by rank path.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterable, Sequence
from typing import ClassVar

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.growth import Growth, Proposes, grow_at_once
from jaxspec.builders.protocol import Builder, check_choices
from jaxspec.builders.scores import NEVER, Cost, add, from_logprob
from jaxspec.builders.trees.paths import Paths, choose_paths, make_paths, skips_ranks
from jaxspec.builders.trees.rows import assemble_sorted
from jaxspec.builders.trees.static_steps import grow_static
from jaxspec.core.state import Tree


@dataclasses.dataclass(frozen=True)
class Static(Builder):
    """See `static`."""

    name: ClassVar[str] = "static"
    paths: Paths | None = None

    def check(self, proposes: Proposes) -> None:
        check_choices(self, proposes)
        if self.paths is None:
            return
        longest, choices = _measure(self.paths)
        if longest > proposes.depth:
            raise ValueError(
                f"paths are up to {longest} deep, the drafter drafts {proposes.depth}: "
                "give shorter paths or a larger block_size"
            )
        if choices > proposes.vocab_size:
            raise ValueError(
                f"paths hold rank {choices - 1}: "
                f"ranks end at {proposes.vocab_size - 1}, the vocabulary's last"
            )

    def check_drawn(self, growth: Growth) -> None:
        if self.paths and skips_ranks(self.paths):
            raise ValueError(
                "acceptance 'rejection' needs siblings of ranks 0, 1, ...: a node in paths skips "
                "one"
            )
        # The shape is fixed, and every node drafts from a slot of its own.
        if growth.slots > 1:
            super().check_drawn(growth)

    @property
    def spends_budget(self) -> bool:
        return self.paths is None

    def make_growth(self, proposes: Proposes) -> Growth:
        paths = self.paths
        if paths is None:
            blocks = -(-proposes.depth // proposes.slots)
            nodes = proposes.budget - 1
            paths = make_paths(
                choose_paths(proposes.slots, blocks, nodes, proposes.depth, proposes.vocab_size)
            )
        if proposes.steps:
            return grow_static(paths, proposes.slots)
        longest, choices = _measure(paths)
        rows = 1 + len(paths)
        build = functools.partial(build_static, rows=rows, paths=paths)
        return grow_at_once(build, rows=rows, candidates=choices, longest=longest)


def static(paths: Iterable[Sequence[int]] | None = None) -> Static:
    """Make a fixed tree: Medusa's `choices`.

    Args:
      paths: the rank path of every node, as in [[0], [0, 0], [1]], whatever the budget is. None
        takes as many as the budget holds of the paths that are most probable if the candidate of
        rank r is right with probability 0.6 * 0.4 ** r.
    """
    return Static(None if paths is None else make_paths(paths))


def _measure(paths: Paths) -> tuple[int, int]:
    """Return the depth of the tree of `paths` and its number of candidates per depth."""
    return max(map(len, paths)), max(map(max, paths)) + 1


def build_static(
    token: jax.Array,
    logprob: jax.Array,
    root: jax.Array,
    depth_limit: jax.Array,
    rows: int,
    paths: Paths,
) -> Tree:
    """Build one tree (no batch axis) of `rows` = 1 + len(paths) rows.

    Args:
      token, logprob, root, depth_limit: see `build_best_first`.
      rows: N, root included; static.
      paths: result of `make_paths`, with ranks below C and at most D long; static.
    """
    depths, width = logprob.shape
    id_of = {path: i for i, path in enumerate([(), *paths])}
    parent = np.array([-1, *(id_of[path[:-1]] for path in paths)], np.int32)
    flat = np.array([0, *((len(path) - 1) * width + path[-1] for path in paths)], np.int32)
    steps = from_logprob(logprob, depth_limit)
    cost = Cost(jnp.zeros(rows, jnp.uint32), jnp.zeros(rows, jnp.uint32))
    for depth in range(depths):
        below = np.array([len(path) > depth for path in [(), *paths]])
        rank = np.array(
            [path[depth] if len(path) > depth else 0 for path in [(), *paths]], np.int32
        )
        deeper = add(cost, Cost(steps.hi[depth, rank], steps.lo[depth, rank]))
        cost = Cost(jnp.where(below, deeper.hi, cost.hi), jnp.where(below, deeper.lo, cost.lo))
    hi, lo, order = jax.lax.sort((*cost, jnp.arange(rows, dtype=jnp.int32)), num_keys=3)
    return assemble_sorted(
        token,
        logprob,
        root,
        order=order,
        parent=jnp.asarray(parent)[order],
        index=jnp.asarray(flat)[order],
        size=jnp.sum(hi != NEVER, dtype=jnp.int32),
        max_depth=depths,
        cost=Cost(hi, lo),
    )
