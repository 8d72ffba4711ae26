"""The picture of `jaxspec bench latency`; matplotlib (the `bench` extra) is imported to draw it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jaxspec.bench.measure.phases import PIECES


def plot_latency(report: dict[str, Any], path: Path) -> None:
    """Write a picture: milliseconds of every piece over the width, one panel per context.

    Floors are dashed.

    Args:
      report: result of `measure_latency`.
      path: file of the picture, such as OUT.png.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    contexts = sorted({one["context"] for one in report["records"]})
    figure, axes = plt.subplots(
        1,
        max(len(contexts), 1),
        figsize=(1 + 4.2 * max(len(contexts), 1), 4),
        squeeze=False,
        sharey=True,
    )
    for context, panel in zip(contexts, axes[0], strict=False):
        for number, piece in enumerate(("ar", *PIECES, "round")):
            found = sorted(
                (
                    one
                    for one in report["records"]
                    if (one["piece"], one["context"]) == (piece, context)
                ),
                key=lambda one: one["width"],
            )
            widths, colour = [one["width"] for one in found], f"C{number}"
            panel.plot(widths, [one["ms"] for one in found], "o-", color=colour, label=piece)
            if found and found[0]["floor_ms"] and piece in ("verify", "round"):
                panel.plot(widths, [one["floor_ms"] for one in found], "--", color=colour)
        panel.set(xscale="log", yscale="log", xlabel="rows", title=f"context {context}")
        panel.set_xticks(sorted({one["width"] for one in report["records"]}), labels=None)
        panel.xaxis.set_major_formatter("{x:.0f}")
        panel.minorticks_off()
    axes[0][0].set_ylabel("milliseconds")
    axes[0][0].legend(fontsize=7)
    figure.suptitle(
        f"{report['settings']['arch']}, {report['settings']['dtype']}, {report['device']['kind']} "
        "(dashed: floor)"
    )
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)
