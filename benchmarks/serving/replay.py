"""Replay a full engine over recorded trees, on a clock of modelled costs.

The plan that shares the rows, the correction of scores and the choice to draft are the engine's
own; only the models and the clock are not run.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.serving.recorded_trees import Trees
from jaxspec.core.state import Accepted, Tree
from jaxspec.serve.on_device.calibration import (
    Calibration,
    calibrate,
    init_calibration,
    observe_rows,
)
from jaxspec.serve.on_device.share_rows import Offer, share_rows
from jaxspec.serve.on_device.slot_rounds import Rules
from jaxspec.tuner.serving.costs import Costs
from jaxspec.tuner.serving.draft_choice import DraftChoice
from jaxspec.tuner.serving.live_costs import LiveCosts

# Rounds after which figures count: the choice to draft and the correction of scores have settled.
_SETTLED = 128


class Replayed(NamedTuple):
    """What a rule reached.

    Attributes:
      tokens_per_second: of all slots.
      tokens_per_round: of a slot.
      rows: mean rows that a round verified, padding included.
      drafted: share of rounds that drafted.
    """

    tokens_per_second: float
    tokens_per_round: float
    rows: float
    drafted: float


def replay(
    trees: Trees, slots: int, rules: Rules, costs: Costs, *, budget: int, rounds: int, seed: int = 0
) -> Replayed:
    """Run rounds of `slots` slots, all busy; a text that ends is followed by another.

    Args:
      trees: of `budget` rows or more.
      rules: `ar` never drafts.
      costs: of each edge of the rules, and of plain rounds.
      budget: most rows of a slot.
      rounds: that are counted.
    """
    generator = np.random.default_rng(seed)
    texts, tokens = trees.logprob.shape[:2]
    text = generator.integers(0, texts, slots)
    place = generator.integers(0, tokens, slots)
    live = LiveCosts(costs, rules.edges, rules.plain_edges(slots))
    choice = DraftChoice(live) if rules.rule in ("global", "equal") else None
    known = init_calibration(slots, int(trees.depth.max()) + 1)
    total = np.zeros(4)
    for index in range(_SETTLED + rounds):
        drafts = rules.rule != "ar" and (choice is None or choice.wants_drafts())
        made, rows = np.ones(slots, int), slots
        if drafts:
            offered = [array[text, place, :budget] for array in trees]
            seconds = jnp.asarray(live.drafted)
            new, edge, known = _step(*offered, known, seconds, rules)
            made, rows = np.asarray(new), rules.edges[int(edge)]
        took = (live.drafted if drafts else live.plain)[live.find(drafts, rows)]
        if choice is not None:
            choice.observe(drafts, made[:, None], np.asarray([rows]))
        if index >= _SETTLED:
            total += made.sum(), took, rows, drafts
        place = place + made
        ended = place >= tokens
        text = np.where(ended, generator.integers(0, texts, slots), text)
        place = np.where(ended, 0, place)
        if ended.any():
            known = _forget(known, ended)
    emitted, seconds, verified, drafted = total
    return Replayed(
        emitted / seconds, emitted / rounds / slots, verified / rounds, drafted / rounds
    )


@functools.partial(jax.jit, static_argnames=("rules",))
def _step(
    logprob: jax.Array,
    depth: jax.Array,
    accepted: jax.Array,
    known: Calibration,
    seconds: jax.Array,
    rules: Rules,
) -> tuple[jax.Array, jax.Array, Calibration]:
    """Share the rows of a round among trees [B, N] and count what they commit.

    Returns:
      (int32 [B], tokens of each slot; int32 [], the edge; what is known of the scores).
    """
    slots, width = logprob.shape
    size, ones = jnp.isfinite(logprob).sum(-1, dtype=jnp.int32), jnp.ones(slots, jnp.int32)
    none = jnp.zeros((slots, width), jnp.int32)
    tree = Tree(none, none, depth, none[..., None].astype(jnp.uint32), logprob, size)
    score = calibrate(tree, known)
    offer = Offer(score, size, jnp.ones(slots), ones, ones * width)
    shared = share_rows(rules.rule, offer, rules.edges, seconds, jnp.int32(-1))
    taken = accepted & (jnp.arange(width) < shared.rows[:, None])
    path = jnp.where(taken, jnp.arange(width), 0)
    verified = tree.replace(size=shared.rows)
    known = observe_rows(verified, Accepted(path, ones, ones), ones > 0, known)
    return taken.sum(-1), shared.edge, known


@jax.jit
def _forget(known: Calibration, ended: jax.Array) -> Calibration:
    return known.forget(ended)
