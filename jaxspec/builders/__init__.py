"""Tree builders: how ranked candidates per depth become a tree to verify.

`budget` is everywhere the number of rows verified, the root included. Papers differ: DDTree and BASTION count drafted nodes
only (their M is our M + 1), JetSpec includes the root.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders.best_first import best_first
from jaxspec.builders.candidates import rank
from jaxspec.builders.chain import chain
from jaxspec.builders.expand import expand
from jaxspec.builders.fanout import Rule, make_rule
from jaxspec.state import Candidates, Tree

__all__ = ["BUILDERS", "DEFAULT_TREE_WIDTH", "Builder", "best_first", "chain", "expand", "make_builder", "make_rule", "rank"]

# Best or nearly so at budgets of 32 by the expected length of JetSpec's golden trees (2 is better at 16, 4 beyond 64).
DEFAULT_TREE_WIDTH = 3
BUILDERS = {"chain": chain, "best_first": best_first, "expand": expand}
_ALIASES = {"ddtree": "best_first", "tree": "expand"}


class Builder(NamedTuple):
    """A way to build trees; equal arguments of `make_builder` give the identical object, a static argument of a jit.

    Attributes:
      rows: N, rows of every tree, the root included: the budget, or less where the depth and the candidates allow no more.
      candidates: C, ranked candidates per depth that `build` reads.
      longest: no node is deeper.
      build: (candidates, root int32 [B], depth_limit int32 [B]) -> batched tree of N rows. It reads the first `longest` depths.
        Candidates of log-probability -inf are never used, nor nodes deeper than `depth_limit` made; `size` counts the rows in
        use.
    """

    rows: int
    candidates: int
    longest: int
    build: Callable[[Candidates, jax.Array, jax.Array], Tree]


@functools.lru_cache
def make_builder(
    name: str, *, depth: int, vocab_size: int, budget: int, tree_width: int | None = None, fanout: str | Rule | None = None
) -> Builder:
    """The builder called `name`.

    Args:
      name: `chain`, `best_first` (or `ddtree`: the most probable prefixes) or `expand` (or `tree`: JetSpec's `accum_logp`).
      depth: depths D of the candidates, the longest path that can be drafted.
      vocab_size: tokens there are to choose from.
      budget: rows to verify, the root included.
      tree_width: children of every expanded node, for `expand` (3 if None, see `DEFAULT_TREE_WIDTH`); others do not read it.
      fanout: for `expand`, a rule that gives nodes fewer children, by name or from `make_rule`; None: none does.

    Raises:
      ValueError: unknown name, or a number out of range.
    """
    name = _ALIASES.get(name, name)
    if name not in BUILDERS:
        raise ValueError(f"unknown builder {name!r}: choose one of {', '.join([*BUILDERS, *_ALIASES])}")
    for what, number in (("depth", depth), ("vocab_size", vocab_size), ("budget", budget)):
        if number < 1:
            raise ValueError(f"{what} is {number}: it must be at least 1" + (" (the root counts)" if what == "budget" else ""))
    if tree_width is not None and not 1 <= tree_width <= vocab_size:
        raise ValueError(f"tree_width is {tree_width}: it must be between 1 and the vocabulary size {vocab_size}")
    if fanout is not None and name != "expand":
        raise ValueError(f"fanout is a rule of builder 'expand': leave it out with {name!r}")
    rule = make_rule(fanout) if isinstance(fanout, str) else fanout
    width = min(DEFAULT_TREE_WIDTH if tree_width is None else tree_width, vocab_size)
    choices = {"chain": 1, "best_first": min(max(budget - 1, 1), vocab_size), "expand": width}[name]
    rows = min(budget, _nodes(choices, depth, budget))
    # Every pop of `expand` adds a level at most. A fan-out rule reads all depths, and may make the tree a chain.
    longest = min(depth, -(-(rows - 1) // width) if name == "expand" else rows - 1)
    longest = depth if rule and rows > 1 else longest
    build_one = functools.partial(_ruled, rule) if rule else BUILDERS[name]
    return Builder(rows, choices, longest, _batched(build_one, max(longest, 1), choices, rows))


def _ruled(rule: Rule, token, logprob, root, depth_limit, rows: int) -> Tree:
    return expand(token, logprob, root, depth_limit, rows, jnp.asarray(rule(logprob)))


def _nodes(width: int, depth: int, enough: int) -> int:
    """Nodes of the full `width`-ary tree of `depth` levels, the root included; counting stops at `enough`."""
    total = level = 1
    for _ in range(depth):
        level *= width
        total += level
        if total >= enough:
            break
    return total


def _batched(build_one: Callable[..., Tree], depth: int, choices: int, rows: int) -> Callable[..., Tree]:
    def build(candidates: Candidates, root: jax.Array, depth_limit: jax.Array) -> Tree:
        offered = candidates.token.shape[1:]
        if offered[0] < depth or offered[1] < choices:
            raise ValueError(f"candidates are {offered[0]} deep and {offered[1]} wide: this builder reads {depth} by {choices}")
        token, logprob = candidates.token[:, :depth, :choices], candidates.logprob[:, :depth, :choices]
        one = functools.partial(build_one, rows=rows)
        return jax.vmap(one)(token, logprob, root, depth_limit)

    return build
