"""Outputs of a drafter's trunk: what its output projections read, at the rows of segments.

A head-only update changes the output projections alone. What they read stays, so it is drafted once
for every segment and kept. A step, a test or a signal then projects it at the positions that it
reads, and runs no trunk (SpecBlock, section 3.4: head-only updates are an order of magnitude
cheaper).

A position that a round committed has a row of its own, that of the target's distribution. So
outputs lie by rows, as features do.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.adapt.learning.objective import Aims, Positions, compare, diverge, weigh_ranks
from jaxspec.adapt.learning.redraft import Said, redraft
from jaxspec.adapt.learning.segments import Segments
from jaxspec.drafters.base import Drafter, TargetHead


@dataclasses.dataclass
class KeptOutputs:
    """Outputs of one trunk at the segments of a ring.

    Attributes:
      rows: [N, W, E], on the device; None before the first.
      numbers: {entry of the ring: number of the segment whose outputs are kept there}.
    """

    rows: Any = None
    numbers: dict[int, int] = dataclasses.field(default_factory=dict)

    def find_missing(self, ring: Segments, chosen: np.ndarray) -> np.ndarray:
        """Return those entries of `chosen` int [n] whose segments have no outputs here."""
        numbers = np.asarray(ring.number)
        found = [at for at in np.unique(chosen) if self.numbers.get(int(at)) != numbers[at]]
        return np.array(found, np.int64)

    def remember(self, ring: Segments, entries: np.ndarray) -> None:
        """Note that outputs of the segments at `entries` int [n] are kept now."""
        numbers = np.asarray(ring.number)
        self.numbers |= {int(at): int(numbers[at]) for at in entries}


def draft_outputs(
    drafter: Drafter, variables: Any, target: TargetHead, segments: Segments
) -> jax.Array:
    """Draft S segments again and return what the output projections read.

    Returns:
      [S, W, E]; rows that nobody trains on or reads are zeros.
    """
    wanted = jnp.maximum(jnp.maximum(segments.weight, segments.reject), segments.held)

    def fold(q: jax.Array, depth: jax.Array | int, said: list[Said]) -> jax.Array:
        assert said[0].hidden is not None, "drafters that project return it"
        return said[0].hidden

    found = redraft(drafter, (variables,), target, segments, wanted, fold).swapaxes(0, 1)
    batch, rows = segments.features.shape[:2]
    at = jnp.where(wanted > 0, find_rows(segments), rows)
    empty = jnp.zeros((batch, rows, found.shape[-1]), found.dtype)
    return empty.at[jnp.arange(batch)[:, None, None], at].set(found, mode="drop")


def judge_outputs(
    drafter: Drafter,
    variables: Any,
    segments: Segments,
    own: jax.Array,
    wanted: jax.Array,
    count: int,
    start: tuple[Any, jax.Array] | None = None,
) -> Positions:
    """Project the outputs of S segments and compare with the target, as `objective.judge` does.

    Args:
      own: [S, W, E] of `draft_outputs`.
      wanted: [S, Q, D], above 0 at positions that are read, at most `count` of them.
      start: variables and outputs of q0; None: `kl` is 0.
    """
    assert drafter.project is not None
    at, batch = find_rows(segments), jnp.arange(len(own))[:, None, None]
    rows = own.shape[1]
    reads = jnp.zeros((len(own), rows)).at[batch, at].max(wanted, mode="drop") > 0
    order = jnp.argsort(~reads.reshape(-1))[:count]  # those that are read come first

    def take(each: jax.Array) -> jax.Array:
        return each.reshape(-1, *each.shape[2:])[order]

    def project(variables: Any, outputs: jax.Array) -> tuple[jax.Array, jax.Array | None]:
        logits, classes = drafter.project(variables, take(outputs))
        return logits.astype(jnp.float32), classes

    aims = Aims(*map(take, (segments.ids, segments.logprob, segments.tail, segments.token[:, 1:])))
    logits, classes = project(variables, own)
    vocabulary = variables.get("draft", {}).get("ids")
    found, right = compare(aims, logits, classes, vocabulary)
    if start is not None:
        found = found._replace(kl=diverge(logits, project(*start)[0]))

    def spread(each: jax.Array) -> jax.Array:
        """Bring [count] to the positions [Q, S, D]."""
        flat = jnp.zeros(len(own) * rows, each.dtype).at[order].set(each)
        flat = flat.reshape(len(own), rows)
        return flat[batch, jnp.minimum(at, rows - 1)].swapaxes(0, 1)

    spreaded = jax.tree.map(spread, found)
    return weigh_ranks(spreaded, spread(right), segments, drafter.rank_classes)


def find_rows(segments: Segments) -> jax.Array:
    """Find the row of each position, int32 [S, Q, D]; W for those that no round committed."""
    depth = jnp.arange(segments.weight.shape[-1])
    row = segments.begin[..., None] + depth
    return jnp.where(depth < segments.count[..., None], row, segments.features.shape[1])


def list_sizes(positions: int) -> tuple[int, ...]:
    """List the numbers of positions for which projections are compiled, up to all of them."""
    return tuple(max(positions >> shift, 1) for shift in (2, 1, 0))
