"""Tree builders: how ranked candidates per depth become a tree to verify.

`budget` is everywhere the number of rows verified, the root included. Papers differ: DDTree and
BASTION count drafted nodes only (their M is our M + 1), JetSpec includes the root.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp

from jaxspec.builders.beam import beam
from jaxspec.builders.best_first import best_first
from jaxspec.builders.candidates import rank
from jaxspec.builders.chain import chain
from jaxspec.builders.dynamic import make_dynamic
from jaxspec.builders.expand import expand
from jaxspec.builders.fanout import Rule, make_rule, reads_entropy
from jaxspec.builders.fixed import make_fixed
from jaxspec.builders.rank_guided import make_rank_guided
from jaxspec.builders.scores import DEFAULT_ENTROPY_WEIGHT, LOGPROB, SCORES, Score, step_costs
from jaxspec.builders.static import Paths, make_paths, static
from jaxspec.builders.stepwise import Stepper, make_chain
from jaxspec.core.state import Candidates, Tree

__all__ = [
    "BUILDERS",
    "DEFAULT_TREE_WIDTH",
    "Builder",
    "beam",
    "best_first",
    "chain",
    "expand",
    "make_builder",
    "make_paths",
    "make_rule",
    "make_stepper",
    "rank",
    "static",
]

# Best or nearly so at budgets of 32 by the expected length of JetSpec's golden trees (2 is better
# at 16, 4 beyond 64).
DEFAULT_TREE_WIDTH = 3
# EAGLE-3's; more than that rarely enters trees of up to 64 rows.
DEFAULT_DYNAMIC_WIDTH = 10
BUILDERS = {
    "chain": chain,
    "best_first": best_first,
    "expand": expand,
    "beam": beam,
    "static": static,
}
STEPPERS = ("chain", "static", "dynamic", "rank_guided")
ALIASES = {"ddtree": "best_first", "tree": "expand"}
_SCORED = ("best_first", "expand", "beam")


class Builder(NamedTuple):
    """A way to build trees; equal arguments of `make_builder` give the identical object, a static
    argument of a jit.

    Attributes:
      rows: N, rows of every tree, the root included: the budget, or less where the depth and the
        candidates allow no more.
      candidates: C, ranked candidates per depth that `build` reads.
      longest: no node is deeper.
      build: (candidates, root int32 [B], depth_limit int32 [B]) -> batched tree of N rows. It reads
        the first `longest` depths. Candidates of log-probability -inf are never used, nor nodes
        deeper than `depth_limit` made; `size` counts the rows in use.
      entropy: whether `build` reads `candidates.entropy`.
    """

    rows: int
    candidates: int
    longest: int
    build: Callable[[Candidates, jax.Array, jax.Array], Tree]
    entropy: bool = False


@functools.lru_cache
def make_builder(
    name: str,
    *,
    depth: int,
    vocab_size: int,
    budget: int,
    tree_width: int | None = None,
    fanout: str | Rule | None = None,
    paths: Paths | None = None,
    score: str = "logprob",
    entropy_weight: float | None = None,
) -> Builder:
    """The builder called `name`.

    Args:
      name: `chain`, `best_first` (or `ddtree`: the most probable prefixes), `expand` (or `tree`:
        JetSpec's `accum_logp`), `beam` (levels of equal width) or `static` (the tree of `paths`).
      depth: depths D of the candidates, the longest path that can be drafted.
      vocab_size: tokens there are to choose from.
      budget: rows to verify, the root included; `static` does not read it, its rows are those of
        `paths`.
      tree_width: for `expand`, children of every expanded node (3 if None, see
        `DEFAULT_TREE_WIDTH`); for `beam`, nodes of a level (if None as many as spend the budget
        over all depths); others do not read it.
      fanout: for `expand`, a rule that gives nodes fewer children, by name or from `make_rule`;
        None: none does.
      paths: for `static`, the tree, from `make_paths`.
      score: what `best_first`, `expand` and `beam` order paths by, see `scores.Score`.
      entropy_weight: lambda of score `hybrid` (0.1 if None); others have none.

    Raises:
      ValueError: unknown name, a number out of range, or an option of another builder.
    """
    name = ALIASES.get(name, name)
    if name not in BUILDERS:
        names = [*BUILDERS, *ALIASES, "dynamic", "rank_guided"]
        raise ValueError(f"unknown builder {name!r}: choose one of {', '.join(names)}")
    for what, number in (("depth", depth), ("vocab_size", vocab_size), ("budget", budget)):
        if number < 1:
            raise ValueError(
                f"{what} is {number}: it must be at least 1"
                + (" (the root counts)" if what == "budget" else "")
            )
    if tree_width is not None and not 1 <= tree_width <= vocab_size:
        raise ValueError(
            f"tree_width is {tree_width}: it must be between 1 and the vocabulary size {vocab_size}"
        )
    if fanout is not None and name != "expand":
        raise ValueError(f"fanout is a rule of builder 'expand': leave it out with {name!r}")
    if paths is not None and name != "static":
        raise ValueError(f"paths are a tree of builder 'static': leave them out with {name!r}")
    scoring = _make_score(name, score, entropy_weight)
    if name == "static":
        return _static(paths, depth, vocab_size)
    rule = make_rule(fanout) if isinstance(fanout, str) else fanout
    rows, choices, longest = _sizes(name, depth, vocab_size, budget, tree_width)
    # A fan-out rule reads all depths, and may make the tree a chain.
    longest = depth if rule and rows > 1 else longest
    build_one = functools.partial(BUILDERS[name], rows=rows)
    return _batched(build_one, rows, choices, longest, scoring, rule)


@functools.lru_cache
def make_stepper(
    name: str,
    *,
    slots: int,
    depth: int,
    vocab_size: int,
    budget: int,
    tree_width: int | None = None,
    paths: Paths | None = None,
    ranked: bool = False,
    classes: str | tuple[int, ...] | None = None,
) -> Stepper:
    """The builder called `name` of trees that grow while the drafter runs.

    Args:
      name: `chain`, `static`, `dynamic` (EAGLE-2's tree) or `rank_guided` (SpecBlock's).
      slots: tokens that the drafter proposes after a node. depth, vocab_size, budget, paths: as of
        `make_builder`.
      tree_width: for `dynamic`, nodes of a level that are drafted from (None: a sixth of the
        budget, 2 to 10); for `rank_guided`, candidates below the root.
      ranked: whether the drafter gives its slots rank classes. classes: for `rank_guided`, the
        widths of slots by rank class or the name of a published map (`slim` if None, or `default`).

    Raises:
      ValueError: a builder that does not go with the drafter, or a number out of range.
    """
    if budget < 1:
        raise ValueError(f"budget is {budget}: it must be at least 1 (the root counts)")
    if tree_width is not None and not 1 <= tree_width <= vocab_size:
        raise ValueError(
            f"tree_width is {tree_width}: it must be between 1 and the vocabulary size {vocab_size}"
        )
    if paths is not None and name != "static":
        raise ValueError(f"paths are a tree of builder 'static': leave them out with {name!r}")
    if classes is not None and name != "rank_guided":
        raise ValueError(
            f"fanout is for builders 'expand' and 'rank_guided': leave it out with {name!r}"
        )
    if budget == 1 and name != "static":
        return make_chain(1, 1)._replace(rows=1)
    if name == "chain":
        return make_chain(slots, min(depth, budget - 1))
    if name == "static":
        longest, choices = _check_paths(paths, depth, vocab_size)
        return make_fixed(paths, slots)
    if name == "dynamic":
        if slots > 1:
            raise ValueError(
                "builder 'dynamic' is for drafters of a token at a time, or of one block: choose chain or static"
            )
        # The published trees draft from 10 nodes of a level for 60 rows; a smaller tree has no use
        # for as many.
        width = (
            max(min(DEFAULT_DYNAMIC_WIDTH, -(-budget // 6)), 2)
            if tree_width is None
            else tree_width
        )
        return make_dynamic(min(width, vocab_size), min(depth, budget - 1), budget)
    if name != "rank_guided":
        raise ValueError(f"unknown builder {name!r}: choose one of {', '.join(STEPPERS)}")
    if not ranked:
        raise ValueError("builder 'rank_guided' needs a drafter with a rank head (SpecBlock)")
    width = min(DEFAULT_DYNAMIC_WIDTH if tree_width is None else tree_width, vocab_size)
    return make_rank_guided(
        slots, -(-depth // slots), vocab_size, budget, width, classes or "slim", depth=depth
    )


def _sizes(
    name: str, depth: int, vocab_size: int, budget: int, tree_width: int | None
) -> tuple[int, int, int]:
    """Rows, candidates and depth of the deepest node."""
    width = DEFAULT_TREE_WIDTH if name == "expand" else max(-(-(budget - 1) // depth), 1)
    width = min(width if tree_width is None else tree_width, vocab_size)
    choices = {
        "chain": 1,
        "best_first": min(max(budget - 1, 1), vocab_size),
        "expand": width,
        "beam": width,
    }[name]
    rows = min(budget, 1 + width * depth if name == "beam" else _nodes(choices, depth, budget))
    # Every pop of `expand`, and every level of a beam, adds a level at most.
    return (
        rows,
        choices,
        min(depth, -(-(rows - 1) // width) if name in ("expand", "beam") else rows - 1),
    )


def _make_score(builder: str, name: str, weight: float | None) -> Score:
    if name not in SCORES:
        raise ValueError(f"unknown score {name!r}: choose one of {', '.join(SCORES)}")
    if name != "logprob" and builder not in _SCORED:
        raise ValueError(
            f"score {name!r} is for builders {', '.join(_SCORED)}: leave it out with {builder!r}"
        )
    if name != "hybrid":
        if weight is not None:
            raise ValueError(f"entropy_weight is for score 'hybrid': leave it out with {name!r}")
        return Score(name)
    weight = DEFAULT_ENTROPY_WEIGHT if weight is None else weight
    # Below 0 a child could come before its parent.
    if not 0 <= weight < float("inf"):
        raise ValueError(f"entropy_weight is {weight}: give a number of at least 0")
    return Score(name, float(weight))


def _check_paths(paths: Paths | None, depth: int, vocab_size: int) -> tuple[int, int]:
    """Depth and candidates of a static tree."""
    if paths is None:
        raise ValueError(
            "builder 'static' needs paths: list the rank path of every node, as in [[0], [0, 0], [1]]"
        )
    longest, choices = max(map(len, paths)), max(map(max, paths)) + 1
    if longest > depth:
        raise ValueError(
            f"paths are up to {longest} deep, the drafter drafts {depth}: give shorter paths or a larger block_size"
        )
    if choices > vocab_size:
        raise ValueError(
            f"paths hold rank {choices - 1}: ranks end at {vocab_size - 1}, the vocabulary's last"
        )
    return longest, choices


def _static(paths: Paths | None, depth: int, vocab_size: int) -> Builder:
    longest, choices = _check_paths(paths, depth, vocab_size)
    build_one = functools.partial(static, rows=1 + len(paths), paths=paths)
    return _batched(build_one, 1 + len(paths), choices, longest)


def _nodes(width: int, depth: int, enough: int) -> int:
    """Nodes of the full `width`-ary tree of `depth` levels, the root included; counting stops at
    `enough`.
    """
    total = level = 1
    for _ in range(depth):
        level *= width
        total += level
        if total >= enough:
            break
    return total


def _batched(
    build_one: Callable[..., Tree],
    rows: int,
    choices: int,
    longest: int,
    score: Score = LOGPROB,
    rule: Rule | None = None,
) -> Builder:
    depth, of_rule = max(longest, 1), rule is not None and reads_entropy(rule)
    needs_entropy = score != LOGPROB or of_rule

    def one(token, logprob, entropy, root, depth_limit):
        options = (
            {} if score == LOGPROB else {"steps": step_costs(score, logprob, entropy, depth_limit)}
        )
        if rule:
            options["caps"] = jnp.asarray(rule(logprob, entropy) if of_rule else rule(logprob))
        return build_one(token, logprob, root, depth_limit, **options)

    def build(candidates: Candidates, root: jax.Array, depth_limit: jax.Array) -> Tree:
        offered = candidates.token.shape[1:]
        if offered[0] < depth or offered[1] < choices:
            raise ValueError(
                f"candidates are {offered[0]} deep and {offered[1]} wide: this builder reads {depth} by {choices}"
            )
        if needs_entropy and candidates.entropy is None:
            raise ValueError(
                "this builder reads the entropies of the candidates: give them, see `candidates.rank`"
            )
        token, logprob = (
            candidates.token[:, :depth, :choices],
            candidates.logprob[:, :depth, :choices],
        )
        entropy = None if candidates.entropy is None else candidates.entropy[:, :depth]
        return jax.vmap(one)(token, logprob, entropy, root, depth_limit)

    return Builder(rows, choices, longest, build, needs_entropy)
