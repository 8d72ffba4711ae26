"""The picture of a session that adapts; matplotlib (the `bench` extra) is imported to draw it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_events(events: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a picture of a session: tokens per round, with its updates.

    Published updates are green lines, refused ones grey, versions taken back red.

    Args:
      events: of `jaxspec.adapt.AdaptiveSession`.
    """
    figure, (axes,), pyplot = new_figure()
    paces = [event["tokens"] / max(event["rounds"], 1) for event in events]
    axes.plot(paces, ".", color="0.7")
    width = min(16, max(len(paces) // 4, 1))
    means = [
        sum(paces[max(0, i + 1 - width) : i + 1]) / min(i + 1, width) for i in range(len(paces))
    ]
    axes.plot(means, color="C0", label=f"mean of {width} queries")
    for at, event in enumerate(events):
        if event["restored"] is not None:
            axes.axvline(at, color="tab:red")
        elif "update" in event:
            published = event["update"]["published"] is not None
            axes.axvline(at, color="tab:green" if published else "0.8", linewidth=0.8)
    axes.set(xlabel="query", ylabel="tokens per round")
    axes.legend(fontsize=8)
    save_figure(figure, path, pyplot)


def new_figure(rows: int = 1) -> tuple[Any, Any, Any]:
    """Return (figure, axes of every row, pyplot) of a wide picture that no window shows."""
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as pyplot

    figure, axes = pyplot.subplots(rows, figsize=(8, 4 * rows), squeeze=False)
    return figure, axes[:, 0], pyplot


def save_figure(figure: Any, path: Path, pyplot: Any) -> None:
    """Write a picture and close it."""
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
