"""Serve streams with every decider, and keep what each query took."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from jaxspec.adapt import AdaptOptions, Decider, Session, make_decider
from jaxspec.adapt.actions import ACTIONS
from jaxspec.adapt.deciders import DECIDERS, Decision
from jaxspec.bench.adapt.streams import Item, make_stream
from jaxspec.bench.measure.prompt_files import LabelledPrompt
from jaxspec.core.params import Params

ARMS = tuple(DECIDERS)


def measure_adapt(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    *,
    method: str | None = None,
    stream: str = "blocks",
    arms: Sequence[str] = ARMS,
    queries: int = 200,
    seeds: int = 5,
    probes: int = 8,
    options: AdaptOptions | None = None,
    decode: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Serve a stream with every arm.

    Args:
      method: the drafter; None: the default one.
      stream, queries: see `make_stream`.
      seeds: number of streams.
      probes: prompts of the first block that are decoded again at the end, to see what was
        forgotten.
      decode: keyword arguments of `jaxspec.decode`.

    Returns:
      A JSON-able record: settings and, under `runs`, one record per arm and seed with its queries.

    Raises:
      ValueError: unknown arm or stream, too few domains, or a number below 1.
    """
    for name, value in (("queries", queries), ("seeds", seeds), ("probes", probes)):
        if value < 1:
            raise ValueError(f"{name} is {value}: give at least 1")
    deciders = [make_decider(arm) for arm in arms]
    options, given = options or AdaptOptions(), {"policy": None, "budget": 16} | (decode or {})
    # Before anything compiles, since they may be refused.
    streams = [make_stream(stream, prompts, queries, seed) for seed in range(seeds)]
    for anchored in sorted({decider.anchored for decider in deciders}):
        _warm_up(params, prompts[0].content, anchored, method, options, given)
    runs = []
    for seed, items in enumerate(streams):
        for arm in arms:
            session = Session(params, arm, method=method, options=options, seed=seed)
            for number, item in enumerate(items, 1):
                progress(f"seed {seed}, {arm}: query {number} of {len(items)}")
                session.decode(item.content, domain=item.domain, **given)
            runs.append(
                {
                    "arm": arm,
                    "seed": seed,
                    "queries": _describe(session, items),
                    "forgetting": _probe(session, items[:probes], given),
                }
            )
            session.close()
    return {
        "stream": stream,
        "queries": queries,
        "seeds": seeds,
        "arms": list(arms),
        "decode": given,
        "method": method or params.spec.default_method,
        "runs": runs,
    }


def _describe(session: Session, items: Sequence[Item]) -> list[dict[str, Any]]:
    """Return what a report needs of every query."""
    names = ("tokens", "rounds", "decode_seconds", "evidence_seconds", "update_seconds", "version")
    found = []
    for event, item in zip(session.events, items, strict=True):
        one = {name: event[name] for name in names} | {"block": item.block, "domain": item.domain}
        one["restored"] = event["decision"][2] is not None
        if "update" in event:
            one |= {"update": event["update"], "steps": event["steps"]}
        found.append(one)
    return found


def _probe(session: Session, items: Sequence[Item], given: dict[str, Any]) -> float:
    """Decode prompts with the last version, without learning: tokens per round."""
    outs = [session.decode(item.content, adapt=False, **given) for item in items]
    rounds = sum(out.stats.rounds for out in outs)
    return sum(out.stats.emitted - 1 for out in outs) / max(rounds, 1)


def _warm_up(
    params: Params,
    prompt: Any,
    anchored: bool,
    method: str | None,
    options: AdaptOptions,
    given: dict[str, Any],
) -> None:
    """Compile everything that arms run, so that no clock sees it."""

    def decide(state: Any, query: Any) -> tuple[Any, Decision]:
        return state, Decision(ACTIONS[query.index], ACTIONS[query.index])

    decider = Decider(
        dict,
        decide,
        gated=True,
        reads_error=True,
        anchored=anchored,
        rejected_only=True,
        steps=1,
    )
    session = Session(params, decider, method=method, options=options)
    for _ in ACTIONS:
        session.decode(prompt, **given)
    session.decode(prompt, adapt=False, **given)
    session.close()
