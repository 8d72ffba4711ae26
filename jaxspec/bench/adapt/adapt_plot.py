"""Pictures of adaptation; matplotlib (the `bench` extra) is imported to draw them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any


def plot_windows(report: dict[str, Any], path: Path) -> None:
    """Write a picture of tokens per round by window, one line per arm with its interval.

    Args:
      report: from `summarise`.
    """
    figure, axes, pyplot = _new_figure()
    for number, (arm, windows) in enumerate(report["windows"].items()):
        first = [window["first"] for window in windows]
        axes.plot(first, [w["pace"] for w in windows], "o-", color=f"C{number}", label=arm)
        bounds = [window["interval"] or [window["pace"]] * 2 for window in windows]
        axes.fill_between(first, *zip(*bounds, strict=True), color=f"C{number}", alpha=0.1)
    axes.set(xlabel="query", ylabel="tokens per round", title=f"stream: {report['stream']}")
    axes.legend(fontsize=8)
    _save(figure, path, pyplot)


def plot_events(events: Sequence[dict[str, Any]], path: Path) -> None:
    """Write a picture of a session: tokens per round, with its updates.

    Published updates are green lines, refused ones grey, versions taken back red.

    Args:
      events: of `jaxspec.adapt.Session`.
    """
    figure, axes, pyplot = _new_figure()
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
    _save(figure, path, pyplot)


def _new_figure() -> tuple[Any, Any, Any]:
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as pyplot

    return *pyplot.subplots(figsize=(8, 4)), pyplot


def _save(figure: Any, path: Path, pyplot: Any) -> None:
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    pyplot.close(figure)
