"""Measure the rank-1 gap of drafters (JetSpec, section 3.4.2, tables 8 and 9, figure 4)."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jaxspec
from jaxspec.bench.report.table import Column, Table, fixed, percent, show_value
from jaxspec.call.options import group_options
from jaxspec.call.output import TracedRound
from jaxspec.core.params import Params
from jaxspec.drafters.registry import record_of
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.view.rank1_gap import measure_rank1_gap

# The paper's tree, and the lower bounds of its bins after the first, in nats.
BUILDER, BUDGET = "expand/w7", 255
EDGES = (5.0, 20.0, 40.0, 80.0)
BINS = ("below 5: faithful", "5 to 20", "20 to 40", "40 to 80", "from 80: extreme")


def list_block_drafters(params: Params) -> list[str]:
    """List the drafters of `params` that draft a block in one pass, which the gap is about."""
    spec = params.spec
    return [n for n in spec.drafter_names if n != "ar" and record_of(spec.drafter(n)).blocks]


def measure_gaps(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    drafters: Sequence[str],
    *,
    builder: str = BUILDER,
    budget: int = BUDGET,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Decode every prompt with every drafter, and compare what drafter and target think of its
    trees.

    Args:
      params: from `jaxspec.load`, with the drafters.
      drafters: names, see `list_block_drafters`.
      builder, budget: of the trees.
      options: keyword arguments of `jaxspec.decode`, such as `temperature`.

    Returns:
      A JSON-able report: settings; under `results` the record of each drafter, see
      `summarise_gaps`; under `pairs` the share of prompts on which the gap of one drafter exceeds
      that of another, at the first tree of a text.

    Raises:
      ValueError: as `jaxspec.decode`, or a prompt's text has no round.
    """
    results, first = [], {}
    for name in drafters:
        texts = []
        for number, prompt in enumerate(prompts, 1):
            progress(f"{name}: prompt {number} of {len(prompts)}")
            # Scores are the drafter's own log-probabilities: no temperature, no coupled noise.
            own = dict(builder=builder, budget=budget, policy=None, score_temperature=1.0)
            given = group_options(**own, coupled=False, lookup=False, **options or {})
            out = jaxspec.decode(params, prompt.content, drafter=name, trace=True, **given)
            texts.append(out.rounds)
        record = summarise_gaps(texts)
        first[name] = [one["first"] for one in record["prompts"]]
        results.append({"drafter": name} | record)
    pairs = [
        {
            "larger": one,
            "smaller": other,
            "share": float(np.greater(first[one], first[other]).mean()),
        }
        for one, other in itertools.permutations(drafters, 2)
    ]
    settings = {"builder": builder, "budget": budget, "prompts": len(prompts)}
    return settings | {"results": results, "pairs": pairs}


def summarise_gaps(texts: Sequence[Sequence[TracedRound]]) -> dict[str, Any]:
    """Summarise the rank-1 gaps of a drafter.

    The paper bins the first tree of each prompt. Later trees follow what was accepted before, so
    they count in `rounds` only. A text's last round is left out, unless it is the first, since a
    stop or the limit may have cut it short.

    Args:
      texts: rounds of each of P texts, at least one each.

    Returns:
      `first` and `rounds`: median and mean gap, mean accepted drafted tokens, and `bins`: how many
      trees each holds, their share and their accepted tokens (None without trees). `depths`: median
      and mean gap of the first d tokens over all rounds. `prompts`: per prompt, the gap of its
      first tree, and median and mean over its rounds. All gaps are in nats.

    Raises:
      ValueError: a text has no round, or a tree is a root alone.
    """
    if not all(texts):
        raise ValueError("a text ended before its first round: raise --max-new-tokens")
    kept = [list(rounds[:-1] or rounds) for rounds in texts]
    gaps = [[measure_rank1_gap(one.tree) for one in rounds] for rounds in kept]
    if not all(len(gap) for text in gaps for gap in text):
        raise ValueError("a tree is a root alone: raise --budget")
    ends = [np.array([gap[-1] for gap in text]) for text in gaps]
    taken = [np.array([len(one.path) - 1 for one in rounds]) for rounds in kept]
    every = [gap for text in gaps for gap in text]
    depths = []
    for depth in range(1, max(map(len, every)) + 1):
        reached = np.array([gap[depth - 1] for gap in every if len(gap) >= depth])
        depths.append({"depth": depth, "trees": len(reached)} | _centre(reached))
    return {
        "first": _bin_gaps(np.array([one[0] for one in ends]), np.array([one[0] for one in taken])),
        "rounds": _bin_gaps(np.concatenate(ends), np.concatenate(taken)),
        "depths": depths,
        "prompts": [{"first": float(one[0]), "trees": len(one)} | _centre(one) for one in ends],
    }


def _centre(gaps: np.ndarray) -> dict[str, float]:
    return {"median": float(np.median(gaps)), "mean": float(gaps.mean())}


def _bin_gaps(gaps: np.ndarray, accepted: np.ndarray) -> dict[str, Any]:
    """Sort trees into the paper's bins by their gaps [N]; `accepted` int [N] is theirs."""
    at, bins = np.digitize(gaps, EDGES), []
    for number, name in enumerate(BINS):
        own = accepted[at == number]
        mean = float(own.mean()) if len(own) else None
        bins.append({"bin": name, "trees": len(own), "share": len(own) / len(gaps)})
        bins[-1]["accepted"] = mean
    return _centre(gaps) | {"accepted": float(accepted.mean()), "bins": bins}


def render_gaps(report: dict[str, Any]) -> str:
    """Return the tables of a report: bins, depths, prompts and pairs."""
    right: Any = "right"
    number = [Column("median", fixed(2), right), Column("mean", fixed(2), right)]
    accepted = Column("accepted", fixed(2), right)
    counted = [Column("trees", show_value, right), Column("share", percent(0), right)]
    bins, depths, prompts = [], [], []
    for record in report["results"]:
        name = record["drafter"]
        for kind, title in (("first", "first tree"), ("rounds", "all rounds")):
            whole = record[kind]
            count = sum(one["trees"] for one in whole["bins"])
            total = [count, 1.0, whole["accepted"], whole["median"], whole["mean"]]
            bins.append([name, title, "all", *total])
            for one in whole["bins"]:
                own = [one["trees"], one["share"], one["accepted"], None, None]
                bins.append([name, title, one["bin"], *own])
        for one in record["depths"]:
            depths.append([name, one["depth"], one["trees"], one["median"], one["mean"]])
        for place, one in enumerate(record["prompts"], 1):
            prompts.append([name, place, one["trees"], one["first"], one["median"], one["mean"]])
    names, trees = Column("drafter"), Column("trees", show_value, right)
    tables = [
        Table([names, Column("of"), Column("gap, nats"), *counted, accepted, *number], bins),
        Table([names, Column("depth", show_value, right), trees, *number], depths),
        Table(
            [names, Column("prompt", show_value, right), trees]
            + [Column("first tree", fixed(2), right), *number],
            prompts,
        ),
    ]
    lines = [
        f"The gap of {pair['larger']} exceeds that of {pair['smaller']} on "
        f"{100 * pair['share']:.0f}% of prompts."
        for pair in report["pairs"]
    ]
    return "\n\n".join(
        [*(table.to_text() for table in tables), *(["\n".join(lines)] if lines else [])]
    )
