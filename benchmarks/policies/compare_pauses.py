"""`python -m benchmarks pauses`: what other rules of the controller's pauses would cost.

Every prompt is decoded once with `ar` and once with a method; the rest is a replay. The goal of the
default is a speed of at least `GOAL` times that of `ar` in every domain.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.policies.replay_pauses import RecordedText, draft_always, find_reach, replay
from jaxspec.bench.measure.decodes import time_decodes
from jaxspec.bench.measure.methods import Method
from jaxspec.bench.report.summary import describe_environment
from jaxspec.bench.report.table import Column, Table, fixed, percent
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.bastion.pauses import RULE, PauseRule
from jaxspec.round.plan import make_plan

GOAL = 0.97
# Random orders in which one process decodes all texts.
ORDERS = 8


def record_texts(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    method: Method,
    *,
    options: dict[str, Any],
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Decode the prompts with `ar` and with `method`.

    Returns:
      A JSON-able record: `environment`, `method`, `cost`, the time of a drafted round in rounds of
      `ar`, `longest`, most tokens of a round, and `decodes`, each with its `domain` and the tokens
      of its `rounds`.
    """
    runs, _ = time_decodes(
        params,
        prompts,
        [Method("ar", {"drafter": "ar"}), method],
        repeats=1,
        options=options,
        progress=progress,
    )
    session = prepare(params, prompts[0].content, **group_options(**options | method.options))
    seconds = {
        name: sum(run.decode_seconds for run in runs if run.method == name)
        / max(sum(run.rounds for run in runs if run.method == name), 1)
        for name in ("ar", method.name)
    }
    return describe_environment(params) | {
        "method": method.name,
        "cost": seconds[method.name] / seconds["ar"],
        "longest": make_plan(params.spec, session.config).longest,
        "decodes": [
            {"domain": prompts[run.prompt].domain, "rounds": list(run.round_tokens)}
            for run in runs
            if run.method == method.name
        ],
    }


def read_records(paths: Sequence[Path]) -> dict[str, Any]:
    """Read reports of earlier runs and pool their texts; the rest is the first one's.

    Raises:
      FileNotFoundError: a file does not exist.
      ValueError: a file holds no rounds, or its method differs from the first one's.
    """
    records = []
    for path in paths:
        record = json.loads(path.read_text(encoding="utf-8"))
        if not all("rounds" in one for one in record.get("decodes") or [{}]):
            raise ValueError(f"{path} holds no rounds: give a file that `--json` wrote here")
        if records and record["method"] != records[0]["method"]:
            raise ValueError(f"{path} is of {record['method']}: give files of one method")
        records.append(record)
    return records[0] | {"decodes": [one for record in records for one in record["decodes"]]}


def compare_rules(
    texts: Sequence[RecordedText],
    costs: Sequence[float],
    longest: int,
    rules: Sequence[PauseRule],
    *,
    seed: int = 0,
) -> list[dict[str, Any]]:
    """Replay the rules on texts in different processes.

    Args:
      costs: times of a drafted round in rounds of `ar`.
      seed: of the `ORDERS` random orders of the texts.

    Returns:
      A record per cost, `kind` of texts and `rule`, its values joined by slashes, or `always` for
      drafting in every round. Kinds are `first`, every text is the first one of its process,
      `domain`, a process decodes the texts of one domain, and `mixed`, one process decodes all.
      `speeds` are over `ar`, by domain, and `losses` what each domain loses against the better of
      drafting always and never.
    """
    domains = list(dict.fromkeys(text.domain for text in texts))
    member = np.array([[text.domain == domain for text in texts] for domain in domains])
    tokens = member @ np.array([len(text.reach) for text in texts])
    always = tokens / (draft_always(texts, costs) @ member.T)
    names = ["always", *map(show_rule, rules)]
    records = []
    for kind, (orders, begins) in _order_texts(member, seed).items():
        times = replay(texts, orders, costs, longest, rules, begins)
        speeds = np.stack([always, *(tokens / (times @ member.T))])
        losses = 1 - speeds / np.maximum(always, 1)
        for (rule, cost), _ in np.ndenumerate(speeds[..., 0]):
            found = {"cost": float(costs[cost]), "kind": kind, "rule": names[rule]}
            found["speeds"] = dict(zip(domains, speeds[rule, cost].tolist(), strict=True))
            found["losses"] = dict(zip(domains, losses[rule, cost].tolist(), strict=True))
            records.append(found)
    return sorted(records, key=lambda one: (one["cost"], one["kind"]))


def _order_texts(member: np.ndarray, seed: int) -> dict[str, tuple[np.ndarray, np.ndarray]]:
    """Order the texts of each kind of `compare_rules`.

    Args:
      member: bool [domains, texts], whether a text belongs to a domain.

    Returns:
      For each kind, int [orders, texts] and whether a process begins, bool [texts].
    """
    random, place = np.random.default_rng(seed), np.arange(member.shape[1])
    by_domain = np.argsort(member.argmax(0), kind="stable")
    changed = np.diff(member.argmax(0)[by_domain], prepend=-1) > 0
    shuffled = np.stack([random.permutation(place) for _ in range(ORDERS)])
    return {
        "first": (place[None], place >= 0),
        "domain": (by_domain[None], changed),
        "mixed": (shuffled, place == 0),
    }


def summarise_rules(results: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Pool the records of each rule over costs, kinds of texts and domains, by mean loss.

    Args:
      results: records of `compare_rules`.

    Returns:
      Records with `rule` and the figures of `_figures`.
    """
    pooled: dict[str, list[dict[str, Any]]] = {}
    for one in results:
        pooled.setdefault(one["rule"], []).append(one)
    found = [{"rule": rule} | _figures(records) for rule, records in pooled.items()]
    return sorted(found, key=lambda one: one["mean loss"])


def _figures(records: Sequence[dict[str, Any]]) -> dict[str, float]:
    speeds = np.array([list(one["speeds"].values()) for one in records])
    losses = np.array([list(one["losses"].values()) for one in records])
    return {
        "mean speed": float(speeds.mean()),
        "lowest": float(speeds.min()),
        f"below {GOAL}": float((speeds < GOAL).mean()),
        "mean loss": float(losses.mean()),
        "largest": float(losses.max()),
    }


def report_pauses(
    record: dict[str, Any], *, rules: Sequence[PauseRule], costs: Sequence[float]
) -> dict[str, Any]:
    """Compare rules on recorded texts.

    Args:
      record: from `record_texts` or `read_records`.
      costs: times of a drafted round in rounds of `ar`.

    Returns:
      The record with `domains`, their numbers of texts, `results`, see `compare_rules`, and
      `summary`, see `summarise_rules`.
    """
    longest = record["longest"]
    texts = [
        RecordedText(one["domain"], find_reach(one["rounds"], longest)) for one in record["decodes"]
    ]
    counts = [text.domain for text in texts]
    results = compare_rules(texts, costs, longest, rules)
    return record | {
        "domains": {domain: counts.count(domain) for domain in dict.fromkeys(counts)},
        "results": results,
        "summary": summarise_rules(results),
    }


def render_pauses(report: dict[str, Any]) -> str:
    """Format the report as two tables: each cost and kind of texts, and all together."""
    titles = list(report["summary"][0])[1:]
    shows = [fixed(2), fixed(2), percent(), fixed(3), fixed(3)]
    columns = [Column("rule"), *map(Column, titles, shows)]
    each = [
        [one["cost"], one["kind"], one["rule"], *_figures([one]).values()]
        for one in report["results"]
    ]
    domains = ", ".join(f"{name} {count}" for name, count in report["domains"].items())
    return (
        f"{report['method']}, texts: {domains}. A drafted round takes `cost` rounds of ar. Speeds "
        f"are over ar, losses against the better of drafting always and never, both by domain; the "
        f"default is {show_rule(RULE)}.\n"
        + Table([Column("cost", fixed(2)), Column("texts"), *columns], each).to_text()
        + "\n\nAll costs and kinds of texts together:\n"
        + Table(columns, [list(one.values()) for one in report["summary"]]).to_text()
    )


def show_rule(rule: PauseRule) -> str:
    """Write a rule as its values, joined by slashes."""
    return "/".join(f"{value:.4g}" for value in rule)


def parse_rules(text: str) -> list[PauseRule]:
    """Read rules as `show_rule` writes them, separated by commas.

    Raises:
      ValueError: a part is not as many numbers as a rule has.
    """
    try:
        found = [[float(value) for value in part.split("/")] for part in text.split(",")]
    except ValueError:
        found = [[]]
    if any(len(values) != len(PauseRule._fields) for values in found):
        form = "/".join(PauseRule._fields)
        raise ValueError(f"{text!r} are no rules: give {form}, for example {show_rule(RULE)}")
    return [PauseRule(*values) for values in found]
