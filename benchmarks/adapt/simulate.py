"""Simulated streams with known gains, on which deciders can be judged in seconds.

A query's tokens per round are those of its domain, times what the updates so far gained, times
noise. An update changes held-out positions up or down by chance, more often up the more it gains.
The noise and the rates of the flips are assumptions; only comparisons between deciders count.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from jaxspec.adapt.actions import ACTIONS, BOTH, SKIP
from jaxspec.adapt.deciders import Decider, Query, UpdateResult
from jaxspec.adapt.gate import Flips

# (action, number of the query, gain so far as a logarithm) -> gain of an update, as a logarithm.
Gain = Callable[[str, int, float], float]


@dataclasses.dataclass(frozen=True)
class Stream:
    """A simulated stream.

    Attributes:
      gain: of updates.
      queries: length of the stream.
      paces: tokens per round of the domains, which take turns by chance.
      noise: standard deviation of the logarithm of a query's tokens per round.
      round_seconds: of a round.
      update_seconds: of an update, in the order of `ACTIONS`.
      tokens: of a query.
      positions: to train on, of a query.
      held: held-out positions of an update.
    """

    gain: Gain
    queries: int = 600
    paces: tuple[float, ...] = (0.75 * 3, 0.95 * 3, 1.15 * 3, 1.35 * 3)
    noise: float = 0.18
    round_seconds: float = 0.008
    update_seconds: tuple[float, float] = (0.02, 0.06)
    tokens: int = 96
    positions: int = 32
    held: int = 768


@dataclasses.dataclass
class Run:
    """What a decider made of a stream.

    Attributes:
      seconds: of decoding and of updates.
      updates, published, restores: their numbers.
      false_restores: of these, those that went back from a version that was no worse.
      gains: gain at every query, a logarithm.
    """

    seconds: float = 0.0
    updates: int = 0
    published: int = 0
    restores: int = 0
    false_restores: int = 0
    gains: list[float] = dataclasses.field(default_factory=list)


def simulate(decider: Decider, stream: Stream, seed: int) -> Run:
    """Let a decider serve a stream; equal seeds give all deciders the same queries."""
    state, run = decider.init(), Run()
    levels, version, spent, first = [0.0], 0, 0.0, 0
    filled, gathers = dict.fromkeys(ACTIONS, 0), True
    for index in range(stream.queries):
        random = np.random.default_rng([seed, index])
        query = _draw_query(stream, random, index, levels[version], spent, filled)
        query = query._replace(version=version, fresh=query.fresh * gathers)
        run.seconds += query.seconds
        run.gains.append(levels[version])
        state, decision = decider.decide(state, query)
        gathers = decision.gather
        first = first if decision.since is None else decision.since
        judged = index + 1 - (first if decision.judge_since is None else decision.judge_since)
        older = [] if decision.restore is None else [decision.restore]
        if decision.judge:
            flips = {
                rival: _draw_flips(stream, random, levels[rival] - levels[version], judged)
                for rival in decision.judge
            }
            state, elected = decider.elect(state, flips)
            older += [] if elected is None else [elected]
        for found in older:
            run.restores += 1
            run.false_restores += levels[version] >= levels[found]
            version = found
        spent = 0.0
        for action in ACTIONS:
            filled[action] += query.fresh * (decision.keep in (action, BOTH))
        if decision.train == SKIP:
            continue
        filled[decision.train] = 0
        gain = stream.gain(decision.train, index, levels[version])
        update, spent = _draw_update(
            stream, random, decision.train, gain, decider.gated, len(levels)
        )
        run.updates += 1
        if update.published is not None:
            levels.append(levels[version] + gain)
            version = update.published
            run.published += 1
        state = decider.observe(state, update)
    run.seconds += spent
    return run


def _draw_query(
    stream: Stream,
    random: np.random.Generator,
    index: int,
    level: float,
    spent: float,
    filled: dict[str, int],
) -> Query:
    place = int(random.integers(len(stream.paces)))
    pace = max(stream.paces[place] * math.exp(level + stream.noise * random.standard_normal()), 1.0)
    rounds = max(round(stream.tokens / pace), 1)
    seconds = rounds * stream.round_seconds + spent
    return Query(
        index,
        str(place),
        stream.tokens,
        rounds,
        seconds,
        0.7 * rounds,
        rounds,
        dict(filled),
        stream.positions,
        tuple(random.random(3).tolist()),
    )


def _draw_flips(stream: Stream, random: np.random.Generator, gain: float, queries: float) -> Flips:
    """Draw what a gain, a logarithm, changes at positions of so many queries."""
    held = int(min(stream.held, 2 * stream.positions * queries))
    up = int(random.poisson(held * (0.06 + 1.2 * max(gain, 0.0))))
    down = int(random.poisson(held * (0.06 + 1.2 * max(-gain, 0.0))))
    return Flips(up, down, held, int(0.4 * held))


def _draw_update(
    stream: Stream, random: np.random.Generator, action: str, gain: float, gated: bool, number: int
) -> tuple[UpdateResult, float]:
    flips = _draw_flips(stream, random, gain, math.inf)
    seconds = stream.update_seconds[ACTIONS.index(action)]
    good = not gated or flips.up > flips.down
    known = (flips.up, flips.down) if gated else (0, 0)
    update = UpdateResult(action, seconds, *known, *flips[2:], number if good else None)
    return update, seconds


def measure_false_restores(
    decider: Decider, streams: int, gain: Gain = lambda action, index, level: 0.0, **changes: Any
) -> tuple[int, int]:
    """Serve streams on which updates change nothing.

    Returns:
      The number of restored versions, and of windows of 16 queries in which one could have been.
    """
    stream = Stream(gain, **changes)
    restores = sum(simulate(decider, stream, seed).restores for seed in range(streams))
    return restores, streams * (stream.queries // 16)
