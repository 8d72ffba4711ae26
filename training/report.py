"""Report a run: a plot of loss and acceptance, and a model card."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from .run.metrics import read_metrics

ACCEPTANCE = ("tau", "accept")
PER_POSITION = re.compile(r"^accuracy\D*(\d+)$")
HIDDEN = {"step", "seconds", "tokens", "tokens_per_second", "grad_norm"}


class ReportError(ValueError):
    """There is nothing to report on."""


def read_curves(metrics_path: Path) -> dict[str, tuple[list[int], list[float]]]:
    """Read (steps, values) of every metric in metrics.jsonl, by name.

    Raises:
      ReportError: the file is missing or empty.
    """
    found: dict[str, tuple[list[int], list[float]]] = {}
    for record in read_metrics(metrics_path):
        for name in record.keys() - HIDDEN:
            steps, values = found.setdefault(name, ([], []))
            steps.append(record["step"])
            values.append(record[name])
    if not found:
        raise ReportError(
            f"no metrics in {metrics_path}: train first, or pass the run's metrics.jsonl"
        )
    return found


def measure_training_cost(metrics_path: Path, batch: int) -> dict[str, float]:
    """Compute the cost of a run for `jaxspec.io.weights.provenance`.

    Args:
      metrics_path: metrics.jsonl of the run.
      batch: rows per step.

    Returns:
      Steps and rows; tokens and minutes if they were logged. Minutes are those of the training
      steps, on the machine of the run, without evaluations and checkpoints.
    """
    records = read_metrics(metrics_path)
    steps = max((record["step"] for record in records), default=0)
    cost, seconds, before = {"steps": steps, "rows": steps * batch}, 0.0, 0
    for record in records:
        if record.get("tokens_per_second"):
            seconds += (record["tokens"] - before) / record["tokens_per_second"]
            before = record["tokens"]
    return cost | ({"tokens": before, "minutes": round(seconds / 60, 1)} if before else {})


def plot_run(metrics_path: Path, out_png: Path) -> None:
    """Plot losses over steps, with acceptance lengths on a second axis.

    Metrics that begin with `tau` or `accept` are acceptance lengths. Accuracies of single positions
    (`accuracy_1`, …) get a panel of their own.
    """
    from matplotlib.figure import Figure

    found = read_curves(metrics_path)
    positions = sorted(
        (name for name in found if PER_POSITION.match(name)),
        key=lambda name: int(PER_POSITION.match(name)[1]),
    )
    figure = Figure(figsize=(8, 7 if positions else 4), layout="constrained")
    panels = figure.subplots(2 if positions else 1, 1, sharex=True, squeeze=False)[:, 0]
    _draw(
        panels[0],
        found,
        sorted(name for name in found if name == "loss" or name.startswith(("heldout", "loss_"))),
    )
    low, high = panels[0].dataLim.intervaly
    panels[0].set(
        ylabel="nats per token",
        title=metrics_path.parent.name,
        yscale="log" if high > 10 * low > 0 else "linear",
    )
    lengths = sorted(name for name in found if name.startswith(ACCEPTANCE))
    if lengths:
        second = panels[0].twinx()
        _draw(second, found, lengths, marker="o", linestyle="--")
        second.set_ylabel("tokens per round, bonus included")
    if positions:
        from matplotlib import colormaps

        colors = colormaps["viridis"]
        for index, name in enumerate(positions):
            panels[1].plot(
                *found[name],
                color=colors(index / max(len(positions) - 1, 1)),
                label=PER_POSITION.match(name)[1],
            )
        panels[1].set(ylabel="accuracy by position", ylim=(0, 1))
        panels[1].legend(title="position", fontsize="x-small", ncols=2, loc="upper left")
    panels[-1].set_xlabel("step")
    lines = [line for axes in (panels[0], *figure.axes[len(panels) :]) for line in axes.get_lines()]
    figure.legend(handles=lines, loc="outside lower center", ncols=4, fontsize="small")
    out_png.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(out_png, dpi=120)


def _draw(axes, found, names: list[str], **style) -> None:
    for index, name in enumerate(names):
        color = f"C{index + (3 if style else 0)}"
        axes.plot(
            *found[name],
            color=color,
            label=name,
            **({"marker": "." if len(found[name][0]) == 1 else None} | style),
        )


@dataclasses.dataclass(frozen=True)
class Card:
    """Contents of a model card that the run did not record.

    Attributes:
      name: name of the drafter.
      what: one or two sentences on what it is.
      target: the model that it drafts for, a hub name or a folder.
      data: what it was trained on, and the origin of this data.
      command: the command line that made it.
      licence: the line on the licence.
      options: resolved options by name; nested names are joined with dots.
      plot: file name of the plot in the card's folder, or None.
    """

    name: str
    what: str
    target: str
    data: str
    command: str
    licence: str
    options: dict
    plot: str | None = None


def make_model_card(card: Card, metrics_path: Path) -> str:
    """Write Markdown: what the drafter is, how it did, how it was made, how to make it again.

    Steps, tokens, time and the last value of each metric are read from metrics.jsonl.

    Raises:
      ReportError: the file is missing or empty.
    """
    found, records = read_curves(metrics_path), read_metrics(metrics_path)
    tokens = max(record.get("tokens", 0) for record in records)
    totals = {
        "steps": f"{records[-1]['step']:,}",
        "tokens": f"{tokens:,}" if tokens else "not counted",
        "time": _duration(max(record["seconds"] for record in records)),
    }
    results = {
        name: f"{values[-1]:.4g} (step {steps[-1]:,})"
        for name, (steps, values) in sorted(found.items())
    }
    plot = f"\n![Loss and acceptance over the steps]({card.plot})\n" if card.plot else ""
    return f"""# {card.name}

{card.what}

* Target: {card.target}
* Data: {card.data}
* Licence: {card.licence}

## Results

The last value of every metric of the run. Acceptance lengths count the bonus token; losses are in nats.

{_table(("metric", "value"), results)}
{plot}
## Training

{_table(("", "in all"), totals)}

To make it again:

```
{card.command}
```

{_table(("option", "value"), {name: f"`{value}`" for name, value in card.options.items()})}
"""


def _table(head: tuple[str, str], rows: dict[str, str]) -> str:
    lines = [head, ("---", "---"), *rows.items()]
    return "\n".join(
        "| " + " | ".join(str(cell).replace("|", "\\|") for cell in line) + " |" for line in lines
    )


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else f"{seconds / 60:.1f} min"
