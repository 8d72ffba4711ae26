"""Serve streams with every decider, and keep what each query took."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.adapt.kept_runs import KeptRuns, Record, digest_prompts
from benchmarks.adapt.streams import PASSES, Item, make_stream
from jaxspec.adapt import AdaptiveSession, AdaptOptions, Decider, make_decider
from jaxspec.adapt.actions import ACTIONS, SKIP
from jaxspec.adapt.deciders import DECIDERS, Decision
from jaxspec.adapt.prices import Prices
from jaxspec.adapt.publish import identify_weights
from jaxspec.bench.report.summary import describe_environment
from jaxspec.call.arguments import check_count
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.tuner.tuner import tune

ARMS = tuple(DECIDERS)
# What an event says of the work; runs of a file that were counted in another way say other things.
COUNTED = ("passes", "reads", "steps", "redrafts", "anchored")


def measure_adapt(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    *,
    drafter: str | None = None,
    stream: str = "blocks",
    arms: Sequence[str] = ARMS,
    queries: int = 200,
    passes: int = PASSES,
    seeds: int = 5,
    probes: int = 8,
    options: AdaptOptions | None = None,
    decode: dict[str, Any] | None = None,
    prices: Prices | None = None,
    keep: Path | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> Record:
    """Serve a stream with every arm.

    Args:
      drafter: its name; None: the default one.
      stream, queries, passes: see `make_stream`.
      seeds: number of streams.
      probes: prompts of the first block that are decoded again at the end, to see what was
        forgotten.
      decode: keyword arguments of `jaxspec.decode`.
      prices: what rounds and updates take on another device, for deciders that count seconds; None:
        the clock.
      keep: a file of finished runs. Each is added as it ends, and those that are there already are
        not served again.

    Returns:
      A JSON-able record: device, versions, settings and, under `runs`, one record per arm and seed
      with its queries.

    Raises:
      ValueError: unknown arm or stream, too few domains, a number below 1, or `keep` holds
        runs of another measurement.
    """
    for name, value in (("queries", queries), ("seeds", seeds), ("probes", probes)):
        check_count(name, value)
    deciders = [make_decider(arm) for arm in arms]
    options, given = options or AdaptOptions(), {"policy": None, "budget": 16} | (decode or {})
    # Before anything compiles, since they may be refused.
    streams = [make_stream(stream, prompts, queries, seed, passes) for seed in range(seeds)]
    drafter = drafter or params.spec.default_drafter
    settings = {"stream": stream, "queries": queries, "decode": given, "drafter": drafter}
    settings |= {"passes": passes} if stream == "passes" else {}
    made_of = {
        "counted": COUNTED,
        "probes": probes,
        "options": dataclasses.asdict(options),
        "prompts": digest_prompts(prompts),
        "weights": identify_weights(params, drafter),
        "prices": None if prices is None else str(prices),
    }
    kept = KeptRuns(keep, settings | made_of)
    if any(kept.find(arm, seed) is None for arm in arms for seed in range(seeds)):
        contents = [item.content for items in streams for item in items]
        sizes = one_of_each_size(params, contents, drafter, given)
        for anchored in sorted({decider.anchored for decider in deciders}):
            _warm_up(params, sizes, anchored, drafter, options, given)

    def start(arm: str, seed: int) -> AdaptiveSession:
        kwargs = {"drafter": drafter, "options": options, "seed": seed, "prices": prices}
        return AdaptiveSession(params, arm, **kwargs)

    runs = []
    for seed, items in enumerate(streams):
        missing = [arm for arm in arms if kept.find(arm, seed) is None]
        # A clock hears what else the machine does, so its arms take turns, query by query.
        for group in [missing] if prices is None else [[arm] for arm in missing]:
            sessions = {arm: start(arm, seed) for arm in group}
            for arm, run in _serve(sessions, items, probes, given, seed, progress).items():
                kept.add({"arm": arm, "seed": seed} | run)
        runs += [kept.find(arm, seed) for arm in arms]
    served = {"seeds": seeds, "arms": list(arms), "runs": runs}
    return describe_environment(params) | settings | served


def _serve(
    sessions: Mapping[str, AdaptiveSession],
    items: Sequence[Item],
    probes: int,
    given: dict[str, Any],
    seed: int,
    progress: Callable[[str], None],
) -> dict[str, Record]:
    """Serve every query of a stream with every session, then the probes, and close the sessions."""
    turns = draw_turns(list(sessions), len(items), seed)
    for number, (item, arms) in enumerate(zip(items, turns, strict=True)):
        progress(f"seed {seed}, {', '.join(sessions)}: query {number + 1} of {len(items)}")
        for arm in arms:
            sessions[arm].decode(item.content, domain=item.domain, **group_options(**given))
    runs = {}
    for arm, session in sessions.items():
        forgetting = _probe(session, items[:probes], given)
        runs[arm] = {"queries": _describe(session, items), "forgetting": forgetting}
        session.close()
    return runs


def draw_turns(arms: Sequence[str], queries: int, seed: int) -> list[list[str]]:
    """Draw the order of the arms for each query.

    No arm always follows the same other one, because an update may leave cold caches behind.
    """
    random = np.random.default_rng(seed)
    return [random.permutation(arms).tolist() for _ in range(queries)]


def _describe(session: AdaptiveSession, items: Sequence[Item]) -> list[Record]:
    """Return what a report needs of every query."""
    names = "tokens", "rounds", "passes", "reads", "version"
    names += tuple(f"{part}_seconds" for part in ("decode", "evidence", "update"))
    found = []
    for event, item in zip(session.events, items, strict=True):
        one = {name: event[name] for name in names} | {"block": item.block, "domain": item.domain}
        one["restored"] = event["restored"] is not None
        if "judged" in event:
            one |= {"judged": event["judged"], "loads": event["loads"]}
        if "update" in event:
            one |= {name: event[name] for name in ("update", "steps", "redrafts", "anchored")}
        found.append(one)
    return found


def _probe(session: AdaptiveSession, items: Sequence[Item], given: dict[str, Any]) -> float:
    """Decode prompts with the last version, without learning: tokens per round."""
    outs = [session.decode(item.content, adapt=False, **group_options(**given)) for item in items]
    rounds = sum(out.stats.rounds for out in outs)
    return sum(out.stats.emitted - 1 for out in outs) / max(rounds, 1)


def one_of_each_size(
    params: Params, contents: Sequence[Any], drafter: str, given: dict[str, Any]
) -> list[Any]:
    """Return one prompt for each capacity of caches that the prompts need."""
    found: dict[int, Any] = {}
    for content in contents:
        session, _ = tune(prepare(params, content, drafter=drafter, **group_options(**given)))
        found.setdefault(session.capacity, content)
    return list(found.values())


def _warm_up(
    params: Params,
    prompts: Sequence[Any],
    anchored: bool,
    drafter: str | None,
    options: AdaptOptions,
    given: dict[str, Any],
) -> None:
    """Compile everything that arms run, so that no clock sees it."""

    def decide(state: Any, query: Any) -> tuple[Any, Decision]:
        action = ACTIONS[query.index] if query.index < len(ACTIONS) else SKIP
        return state, Decision(action, action)

    decider = Decider(
        dict,
        decide,
        gated=True,
        reads_error=True,
        anchored=anchored,
        rejected_only=True,
        steps=1,
    )
    session = AdaptiveSession(params, decider, drafter=drafter, options=options)
    for _ in ACTIONS:
        session.decode(prompts[0], **group_options(**given))
    for prompt in prompts:
        session.decode(prompt, **group_options(**given))
        session.decode(prompt, adapt=False, **group_options(**given))
    session.close()
