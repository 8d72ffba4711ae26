"""Plot the learning curves of LTD's stages."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from ..run.metrics import read_metrics


def plot_stages(run: Path, stages: Sequence[str], results: dict[str, dict[str, float]]) -> None:
    """Plot the stages to curves.png in `run`.

    The top row shows modelled tokens per second of rollouts and validation; rows, steps and losses
    are below.

    Args:
      run: folder of the run.
      stages: names of the folders with metrics.jsonl.
      results: figures by name; those of `static` and `oracle` are drawn as lines.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(stages) + 1, 8), layout="constrained")
    panels = figure.subplots(3, len(stages), squeeze=False)
    for column, stage in enumerate(stages):
        records = read_metrics(run / stage / "metrics.jsonl")
        top, middle, bottom = panels[:, column]
        for name, label in (
            ("rollout_tokens_per_second", "sampled, training"),
            ("tokens_per_second", "greedy, validation"),
        ):
            top.plot(*_series(records, name), marker="o", markersize=3, label=label)
        for name, style in (("static", "--"), ("oracle", ":")):
            top.axhline(
                results[name]["tokens_per_second"],
                color="grey",
                linestyle=style,
                label=f"{name}, validation",
            )
        for name in ("rows", "steps", "acceptance_length"):
            middle.plot(
                *_series(records, name), marker="o", markersize=3, label=name.replace("_", " ")
            )
        for name in ("value_loss", "entropy_loss", "approx_kl", "clip_fraction"):
            bottom.plot(*_series(records, name), label=name.replace("_", " "))
        top.set_title(stage)
        bottom.set_xlabel("updates")
        if column == 0:
            top.set_ylabel("modelled tokens per second")
            middle.set_ylabel("validation, means")
        for panel in (top, middle, bottom):
            panel.legend(fontsize="x-small")
            panel.grid(alpha=0.3)
    figure.savefig(run / "curves.png", dpi=100)


def _series(records: list[dict], name: str) -> tuple[list[int], list[float]]:
    """Return (updates, values) of a metric."""
    found = [(record["step"], record[name]) for record in records if name in record]
    return [step for step, _ in found], [value for _, value in found]
