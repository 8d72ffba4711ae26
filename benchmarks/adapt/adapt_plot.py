"""The picture of what arms reach on a stream; matplotlib is imported to draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxspec.view.adaptation import new_figure, save_figure


def plot_windows(report: dict[str, Any], path: Path) -> None:
    """Write a picture of tokens per round by window, one line per arm with its interval.

    Args:
      report: from `summarise`.
    """
    figure, axes, pyplot = new_figure()
    for number, (arm, windows) in enumerate(report["windows"].items()):
        first = [window["first"] for window in windows]
        axes.plot(first, [w["pace"] for w in windows], "o-", color=f"C{number}", label=arm)
        bounds = [window["interval"] or [window["pace"]] * 2 for window in windows]
        axes.fill_between(first, *zip(*bounds, strict=True), color=f"C{number}", alpha=0.1)
    axes.set(xlabel="query", ylabel="tokens per round", title=f"stream: {report['stream']}")
    axes.legend(fontsize=8)
    save_figure(figure, path, pyplot)
