"""Rules over BlockPilot's study of block sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.reproduce.claim import CONFIRMED, REFUTED, Finding, Reports
from benchmarks.reproduce.decide.rules import Figure, above, below, find

Decide = Callable[[Reports], Finding]


def block(name: str, row: str, measure: str = "rounds", report: str = "report") -> Decide:
    """A choice of BlockPilot's block sizes beats the best fixed one."""

    def decide(reports: Reports) -> Finding:
        one = _study(reports, report, name)["test"][row][measure]
        label = f"{row} / best fixed size"
        found = find(
            [Figure(label, one["ratio"], one["interval"] and tuple(one["interval"]))], above
        )
        seeds = " ".join(f"{ratio:.4f}" for ratio in one["seeds"])
        return found._replace(ours=f"{found.ours}; seeds {seeds}")

    return decide


def _study(reports: Reports, report: str, name: str = "blockpilot") -> dict[str, Any]:
    """Return the only entry of a report of the study."""
    return next(iter(reports[name][report].values()))


def block_input_beats(one: str, other: str) -> Decide:
    """One input of the predictor gives more tokens a round than another one, in every seed."""

    def decide(reports: Reports) -> Finding:
        rows = _study(reports, "report")["test"]
        a, b = rows[one]["rounds"], rows[other]["rounds"]
        ratios = [x / y for x, y in zip(a["seeds"], b["seeds"], strict=True)]
        figure = Figure(f"{one} / {other}", a["ratio"] / b["ratio"], (min(ratios), max(ratios)))
        return find([figure], above)

    return decide


def paper_is_best(other: str, least: float = 1.0) -> Decide:
    """The paper's form of the network gives more tokens a round than another one, in every seed; or
    at least a share `least` of them.
    """

    def decide(reports: Reports) -> Finding:
        a, b = (_study(reports, one)["test"]["raw logits"]["rounds"] for one in ("report", other))
        # Ratios are over the best fixed size among each one's own; values can be compared.
        scale = (a["value"] / b["value"]) / (a["ratio"] / b["ratio"])
        spread = [scale * x / y for x, y in zip(a["seeds"], b["seeds"], strict=True)]
        bounds = (min(spread), max(spread))
        figure = Figure(f"the paper's form / {other}", a["value"] / b["value"], bounds)
        return find([figure], lambda f: above(f, least))

    return decide


def beats_shuffled(variant: str) -> Decide:
    """An input gives more tokens a round than the same input of other prompts."""

    def decide(reports: Reports) -> Finding:
        one = _study(reports, "report")["over_shuffled"][variant]
        figure = Figure(f"{variant} / shuffled", one["ratio"], tuple(one["interval"]))
        return find([figure], above)

    return decide


def block_labels_vary() -> Decide:
    """No block size is the best one of more than half of the training prompts."""

    def decide(reports: Reports) -> Finding:
        one = _study(reports, "wide")
        share = max(one["labels"]) / sum(one["labels"])
        shown = f"labels {one['labels']} of sizes {one['sizes']}, {one['ties']:.0%} tied"
        found = find([Figure("share of the commonest label", share)], lambda f: below(f, 0.5))
        return found._replace(ours=f"{shown}; {found.ours}")

    return decide


def block_labels_cluster(trained: int) -> Decide:
    """The commonest label is within two of the trained size."""

    def decide(reports: Reports) -> Finding:
        one = _study(reports, "wide")
        commonest = one["sizes"][one["labels"].index(max(one["labels"]))]
        shown = f"labels {one['labels']} of sizes {one['sizes']}"
        near_it = abs(commonest - trained) <= 2
        return Finding(CONFIRMED if near_it else REFUTED, f"{shown}: commonest {commonest}")

    return decide


def block_size_beats(one: int, other: int, measure: str) -> Decide:
    """A fixed block size has more tokens a round, or a modelled second, than another one."""

    def decide(reports: Reports) -> Finding:
        found = _study(reports, "wide" if measure == "tokens_per_round" else "report")
        values = dict(zip(found["sizes"], found["by_size"][measure], strict=True))
        return find([Figure(f"block {one} / block {other}", values[one] / values[other])], above)

    return decide


def block_prediction_is_cheap(most: float) -> Decide:
    """A prediction takes a small share of an answer's time."""

    def decide(reports: Reports) -> Finding:
        rows = _study(reports, "report")["test"]["raw logits"]
        share = 1 - rows["deployed"]["value"] / rows["choice"]["value"]
        return find([Figure("share of an answer's time", share)], lambda f: below(f, most))

    return decide
