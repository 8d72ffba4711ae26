"""Compare choices of block sizes on test prompts with constants and the oracle.

Intervals come from a paired bootstrap over prompts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from jaxspec.bench.report.table import Column, Table, fixed
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from training.policies.block_costs import BlockCosts
from training.policies.blockpilot_data import Answers

FIXED = "best fixed size"
# What a choice reads if it predicts nothing: a constant, and the oracle, which knows the answer.
CONSTANT, TOLD = "constant", "told"


class BlockChoice(NamedTuple):
    """Block sizes chosen for n test prompts.

    Attributes:
      classes: int [S, n], indices of the sizes, for S seeds.
      reads: what the prediction reads (`all`, `top`, `projection`), or `CONSTANT` or `TOLD`.
    """

    classes: np.ndarray
    reads: str


def costs_of(answers: Answers, times: BlockCosts | None, reads: str) -> dict[str, np.ndarray]:
    """Compute the cost of each answer with each size: float [P, C] by measure.

    `rounds` is the number of rounds. `choice` is modelled seconds with rounds that are compiled for
    all sizes and with free predictions. `deployed` is modelled seconds as in use: constants run
    rounds that are compiled for their size only, and predictions cost time.
    """
    found = {"rounds": answers.rounds.astype(float)}
    if times is not None:
        chosen = answers.seconds(times.chosen)
        single = answers.seconds(times.single)
        found["choice"] = chosen
        found["deployed"] = single if reads == CONSTANT else chosen + times.predict.get(reads, 0.0)
    return found


def report(
    answers: Answers,
    choices: dict[str, BlockChoice],
    best: np.ndarray,
    times: BlockCosts | None = None,
) -> dict[str, dict]:
    """Make one row per choice.

    Args:
      answers: to n test prompts.
      choices: by name; `FIXED` must be among them.
      best: bool [n, C], the best sizes by the label, ties included.
      times: of rounds and predictions; None leaves the measures in seconds out.

    Returns:
      {name: {"best": share of prompts with one of the best sizes, "block": mean size, and for each
      measure {"value": tokens per round or second, "ratio": to the best fixed size, "interval":
      95 % of the ratio, "seeds": ratio of each seed}}}.
    """
    count, drawn = len(answers.domains), resample_prompts(answers.domains.tolist())
    at, tokens = np.arange(count), answers.tokens[:, 0].astype(float)
    base = {
        measure: cost[at, choices[FIXED].classes[0]]
        for measure, cost in costs_of(answers, times, CONSTANT).items()
    }
    rows = {}
    for name, (classes, reads) in choices.items():
        row = {
            "best": float(best[at, classes].mean()),
            "block": float(answers.sizes[classes].mean()),
        }
        for measure, cost in costs_of(answers, times, reads).items():
            taken = cost[at, classes]  # [S, n]
            row[measure] = {
                "value": float(tokens.sum() / taken.mean(0).sum()),
                "ratio": float(base[measure].sum() / taken.mean(0).sum()),
                "interval": bound_ratio(drawn, (base[measure],), (taken.mean(0),)),
                "seeds": (base[measure].sum() / taken.sum(1)).tolist(),
            }
        rows[name] = row
    return rows


def difference(
    answers: Answers,
    one: BlockChoice,
    other: BlockChoice,
    measure: str,
    times: BlockCosts | None = None,
) -> dict:
    """Compute the ratio of two choices' tokens per `measure`, and its 95 % interval over prompts.

    Seeds are averaged.
    """
    at, drawn = np.arange(len(answers.domains)), resample_prompts(answers.domains.tolist())
    first, second = (
        costs_of(answers, times, c.reads)[measure][at, c.classes].mean(0) for c in (one, other)
    )
    return {
        "ratio": float(second.sum() / first.sum()),
        "interval": bound_ratio(drawn, (second,), (first,)),
    }


def render_rows(rows: dict[str, dict]) -> str:
    """Render the rows as a table for the terminal."""
    heads = {"rounds": "tokens/round", "choice": "tokens/s", "deployed": "tokens/s, deployed"}
    measures = [measure for measure in heads if measure in rows[FIXED]]
    columns = [Column(""), Column("block", fixed(2), "right"), Column("best", fixed(2), "right")]
    columns += [Column(f"{heads[one]} (gain, %)", _show_gain, "right") for one in measures]
    cells = [
        [name, row["block"], row["best"], *(row[one] for one in measures)]
        for name, row in rows.items()
    ]
    return Table(columns, cells).to_text()


def _show_gain(found: dict) -> str:
    bounds = found["interval"] or [float("nan")] * 2
    gain, low, high = (100 * (ratio - 1) for ratio in (found["ratio"], *bounds))
    return f"{found['value']:.3f} {gain:+.2f} [{low:+.2f}, {high:+.2f}]"
