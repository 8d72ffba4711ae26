"""The picture of what arms reach along a stream; matplotlib is imported to draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.view.adaptation import new_figure, save_figure


def plot_windows(report: dict[str, Any], path: Path) -> None:
    """Write a picture of arms along a stream.

    It has the tokens per round of every window with their intervals and, beside `never`, the
    modelled speed up to every query over that of `never` (SpecBlock, figure 7: curves of adapted
    and static drafters along a stream).

    Args:
      report: from `summarise`.
    """
    along = report["along"]
    figure, axes, pyplot = new_figure(2 if along else 1)
    for number, (arm, windows) in enumerate(report["windows"].items()):
        first = [window["first"] for window in windows]
        axes[0].plot(first, [w["pace"] for w in windows], "o-", color=f"C{number}", label=arm)
        bounds = [window["interval"] or [window["pace"]] * 2 for window in windows]
        axes[0].fill_between(first, *zip(*bounds, strict=True), color=f"C{number}", alpha=0.1)
        if arm in along:
            axes[1].plot(np.arange(1, 1 + len(along[arm])), along[arm], color=f"C{number}")
    axes[0].set(xlabel="query", ylabel="tokens per round", title=f"stream: {report['stream']}")
    axes[0].legend(fontsize=8)
    if along:
        axes[1].set(xlabel="query", ylabel="speed up to here, over never")
    save_figure(figure, path, pyplot)
