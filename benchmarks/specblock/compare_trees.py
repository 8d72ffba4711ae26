"""Compare trees of the same drafter on the same prompts, by tokens a round."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from benchmarks.training.recipes import BY_CLASS, BY_SLIM_CLASS, UNIFORM
from jaxspec.bench.report.definitions import divide
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from jaxspec.core.params import Params
from jaxspec.io.text.prompt_files import LabelledPrompt
from training.acceptance import count_rounds

DRAFTER = "specblock"
# Rows of a tree, the root included: the paper's 60 drafted nodes, and fewer.
BUDGETS = (16, 61)


class Way(NamedTuple):
    """One side of a comparison.

    Attributes:
      builder: of its trees.
      bundles: target and drafter, one for each seed of a training.
    """

    builder: str
    bundles: Sequence[Params]


def compare_branching(
    bundles: Sequence[Params], prompts: Sequence[LabelledPrompt], **options: Any
) -> dict[str, Any]:
    """Compare branching by the rank head with k tokens everywhere (table 2, the last ablation).

    Args:
      bundles: target and drafter, one for each seed of a training.
      prompts: held-out ones.
      options: see `compare_ways`.

    Returns:
      See `compare_ways`.
    """
    ways = {"by class": Way(BY_CLASS, bundles), "uniform": Way(UNIFORM, bundles)}
    return compare_ways(ways, prompts, against="uniform", **options)


def compare_widths(
    bundles: Sequence[Params], prompts: Sequence[LabelledPrompt], **options: Any
) -> dict[str, Any]:
    """Compare the paper's two maps from class to tokens, [2, 4, 10, 0] and [2, 4, 6, 4].

    The arguments and the result are those of `compare_branching`.
    """
    ways = {"2,4,10,0": Way(BY_CLASS, bundles), "2,4,6,4": Way(BY_SLIM_CLASS, bundles)}
    return compare_ways(ways, prompts, against="2,4,6,4", **options)


def compare_blocks(
    bundles: Sequence[Params],
    prompts: Sequence[LabelledPrompt],
    *,
    blocks: Sequence[int] = (2, 3, 4),
    **options: Any,
) -> dict[str, Any]:
    """Compare numbers M of blocks on a path, with the same weights: M may exceed training's.

    The other arguments and the result are those of `compare_branching`; the reference is the
    smallest M.
    """
    ways = {
        f"M = {count}": Way(BY_CLASS, [with_blocks(bundle, count) for bundle in bundles])
        for count in blocks
    }
    return compare_ways(ways, prompts, against=f"M = {min(blocks)}", **options)


def with_blocks(bundle: Params, blocks: int) -> Params:
    """Return the bundle with a drafter that chains `blocks` blocks."""
    config = dataclasses.replace(bundle.spec.drafter(DRAFTER), blocks=blocks)
    others = tuple(one for one in bundle.spec.drafters if one[0] != DRAFTER)
    return bundle.replace(
        spec=dataclasses.replace(bundle.spec, drafters=(*others, (DRAFTER, config)))
    )


def compare_ways(
    ways: Mapping[str, Way],
    prompts: Sequence[LabelledPrompt],
    *,
    against: str,
    budgets: Sequence[int] = BUDGETS,
    **options: Any,
) -> dict[str, Any]:
    """Decode all prompts in every way, and compare tokens a round.

    Prompts are resampled within their domains, the same ones for both sides; seeds are pooled, and
    their own ratios stand beside.

    Args:
      ways: by name, with as many seeds each.
      prompts: held-out ones.
      against: the way that the others are compared with.
      budgets: rows of the trees.
      options: of `jaxspec.decode`, such as `max_new_tokens` and `temperature`.

    Returns:
      A JSON-able report: `prompts`, `seeds`, `against`, and `rows`, one for each budget and way:
      `way`, `builder`, `budget`, `tokens_per_round`, `by_seed`; and, for the others, `ratio` to the
      reference, its 95 % `interval`, and `ratio_by_seed`.
    """
    ordered = [
        p for d in dict.fromkeys(p.domain for p in prompts) for p in prompts if p.domain == d
    ]
    drawn = resample_prompts([prompt.domain for prompt in ordered])
    settings = dict(policy=None, lookup=False, **options)
    rows = []
    for budget in budgets:
        found = {
            name: _count(way, ordered, budget=budget, builder=way.builder, **settings)
            for name, way in ways.items()
        }
        base = found[against]
        for name, counts in found.items():
            row = {"way": name, "builder": ways[name].builder, "budget": budget}
            row |= {"tokens_per_round": _rate(counts), "by_seed": [_rate(one) for one in counts]}
            if name != against:
                row |= _compare(counts, base, drawn)
            rows.append(row)
    seeds = len(next(iter(ways.values())).bundles)
    return {"prompts": len(ordered), "seeds": seeds, "against": against, "rows": rows}


def render_ways(report: dict[str, Any]) -> str:
    """Render a report of `compare_ways`."""
    columns = [
        Column("way"),
        Column("rows"),
        Column("tokens/round", fixed(3)),
        Column("by seed"),
        Column(f"over {report['against']} [95%]", with_interval(3)),
    ]
    cells = [
        [
            row["way"],
            row["budget"],
            row["tokens_per_round"],
            " ".join(map(fixed(2), row["by_seed"])),
            (row.get("ratio"), row.get("interval")),
        ]
        for row in report["rows"]
    ]
    return Table(columns, cells).to_text()


def _count(way: Way, prompts: Sequence[LabelledPrompt], **options: Any) -> np.ndarray:
    """Count tokens and rounds of every prompt: int [S, P, 2]."""
    counts = [count_rounds(one, DRAFTER, list(prompts), **options) for one in way.bundles]
    return np.array([[pair for found in one.values() for pair in found] for one in counts])


def _rate(counts: np.ndarray) -> float | None:
    """Divide tokens by rounds; both are summed over prompts, and seeds if there are several."""
    return divide(counts[..., 0].sum(), counts[..., 1].sum())


def _compare(counts: np.ndarray, base: np.ndarray, drawn: np.ndarray) -> dict[str, Any]:
    above = (counts[..., 0].sum(0), base[..., 1].sum(0))
    below = (counts[..., 1].sum(0), base[..., 0].sum(0))
    pairs = [(_rate(one), _rate(other)) for one, other in zip(counts, base, strict=True)]
    return {
        "ratio": divide(_rate(counts) or 0, _rate(base)),
        "interval": bound_ratio(drawn, above, below),
        "ratio_by_seed": [divide(one or 0, other) for one, other in pairs],
    }
