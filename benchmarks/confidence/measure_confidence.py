"""Measure how well a drafter's probabilities predict what the target accepts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import jaxspec
from benchmarks.confidence.calibration import Calibration, calibrate
from benchmarks.confidence.temperatures import fit_temperatures, prefix_probability
from jaxspec.bench.report.table import Column, Table, fixed, percent, show_value
from jaxspec.call.options import group_options
from jaxspec.call.output import TracedRound
from jaxspec.core.params import Params
from jaxspec.drafters.registry import make_drafter
from jaxspec.io.text.prompt_files import LabelledPrompt

# Where the predictions come from: the drafter's distributions, its confidence head, and the head
# with a temperature per position that was fitted on other prompts.
PATHS, HEAD, FITTED = "path scores", "confidence head", "head, fitted"


def list_predictions(rounds: Sequence[TracedRound], depth: int) -> tuple[np.ndarray, np.ndarray]:
    """List what chains predicted and what was accepted.

    Args:
      rounds: of one text; the last is left out, since a stop or the limit may have cut it short.
      depth: D, longest chain.

    Returns:
      (log-probabilities float64 [R, D] that the prefix up to each token is accepted, 1 or 0 for
      whether it was); NaN beyond a chain.
    """
    predicted = np.full((max(len(rounds) - 1, 0), depth), np.nan)
    accepted = predicted.copy()
    for row, round in enumerate(rounds[:-1]):
        drafted = len(round.tree.token) - 1
        predicted[row, :drafted] = round.tree.logprob[1:]
        accepted[row, :drafted] = np.arange(drafted) < len(round.path) - 1
    return predicted, accepted


def measure_confidence(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    drafter: str,
    *,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Decode prompts with chains and compare predictions with what was accepted.

    Every other prompt serves to fit the temperatures; all figures are of the rest.

    Args:
      params: from `jaxspec.load`, with the drafter.
      prompts: at least two.
      options: keyword arguments of `jaxspec.decode`, such as `temperature`.

    Returns:
      A JSON-able report: `temperatures` by position, which replace those in the drafter's config,
      None without a confidence head; and `results`, a record per source of predictions and
      position.

    Raises:
      ValueError: fewer than two prompts, or as `jaxspec.decode`.
    """
    if len(prompts) < 2:
        raise ValueError("one half of the prompts serves to fit: give at least two prompts")
    made = make_drafter(params.spec.drafter(drafter))
    scores = {PATHS: "logprob"} | ({HEAD: "confidence"} if made.confident else {})
    seen: dict[str, list[tuple[np.ndarray, np.ndarray]]] = {source: [] for source in scores}
    for number, prompt in enumerate(prompts, 1):
        progress(f"prompt {number} of {len(prompts)}")
        for source, score in scores.items():
            out = jaxspec.decode(
                params,
                prompt.content,
                drafter=drafter,
                **group_options(
                    builder=jaxspec.builders.chain(score), policy=None, **options or {}
                ),
                budget=made.depth + 1,
                trace=True,
            )
            seen[source].append(list_predictions(out.rounds, made.depth))
    results = []
    for source, texts in seen.items():
        predicted, accepted = map(np.concatenate, zip(*texts[1::2], strict=True))
        results += _records(source, calibrate(np.exp(predicted), accepted))
    temperatures = None
    if made.confident:
        # The head's logits come divided by the temperatures of an earlier fit.
        earlier = np.array(params.spec.drafter(drafter).confidence_temperatures or (1.0,))
        own = earlier[np.minimum(np.arange(made.depth), len(earlier) - 1)]
        fitted, accepted = map(np.concatenate, zip(*seen[HEAD][::2], strict=True))
        temperatures = fit_temperatures(own * conditional_logits(fitted), accepted)
        predicted, accepted = map(np.concatenate, zip(*seen[HEAD][1::2], strict=True))
        logits = own * conditional_logits(predicted)
        results += _records(FITTED, calibrate(prefix_probability(logits, temperatures), accepted))
    return {
        "drafter": drafter,
        "prompts": len(prompts),
        "temperatures": None if temperatures is None else temperatures.tolist(),
        "results": results,
    }


def conditional_logits(logprob: np.ndarray) -> np.ndarray:
    """Compute the logit float64 [R, D] of each token from log-probabilities of its prefix [R, D]."""
    conditional = np.diff(logprob, axis=1, prepend=0.0)
    # Sums in float32 leave probabilities of 1, whose logit would be infinite.
    conditional = np.minimum(conditional, -1e-7)
    return conditional - np.log(-np.expm1(conditional))


def _records(source: str, found: Calibration) -> list[dict[str, Any]]:
    """Return a record per position."""
    names = ("count", "error", "ranking", "brier", "predicted", "accepted")
    return [
        {"source": source, "position": position + 1}
        | {name: _number(getattr(found, name)[position]) for name in names}
        for position in range(len(found.count))
        if found.count[position]
    ]


def _number(value: np.floating) -> float | None:
    return None if np.isnan(value) else float(value)


def render_confidence(report: dict[str, Any]) -> str:
    """Return the report as a table."""
    columns = [
        Column("predictions"),
        Column("position", show_value, "right"),
        Column("rounds", fixed(0), "right"),
        Column("predicted", percent(1), "right"),
        Column("accepted", percent(1), "right"),
        Column("calibration error", percent(1), "right"),
        Column("area under ROC", fixed(3), "right"),
        Column("Brier", fixed(3), "right"),
    ]
    names = ("source", "position", "count", "predicted", "accepted", "error", "ranking", "brier")
    text = Table(columns, [[record[n] for n in names] for record in report["results"]]).to_text()
    if report["temperatures"]:
        text += "\nfitted temperatures: " + ", ".join(f"{t:.2f}" for t in report["temperatures"])
    return text
