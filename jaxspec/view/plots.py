"""Plots of decodes and benchmarks; needs matplotlib (the `bench` extra)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.call.output import Output, TracedRound
from jaxspec.view.pictures import Picture, make_round_picture
from jaxspec.view.text import show_probability

_ACCEPTED, _BONUS, _CUT = "tab:green", "tab:orange", "0.85"
# One plot of acceptance by position has room for this many methods.
LINES = 10


def plot_tree(
    traced: TracedRound | Picture, decode_token: Callable[[int], str] = str, axes: Any = None
) -> Any:
    """Plot a round's draft tree: accepted path green, bonus token orange, cut rows pale.

    The numbers below a token are its probability given its parent and, in brackets, the probability
    of its path; a picture with the target's probabilities has them in a second line.

    Args:
      traced: an entry of `Output.rounds`, from `decode(…, trace=True)`, or a picture from
        `jaxspec.view.pictures.make_picture`.
      decode_token: token id to text.
      axes: matplotlib axes (default: those of a new figure).

    Returns:
      The axes.
    """
    shown = traced if isinstance(traced, Picture) else make_round_picture(traced)
    parent, depth = shown.parent, shown.depth
    if shown.bonus is not None:  # the last leaf
        parent, depth = np.append(parent, shown.end), np.append(depth, depth[shown.end] + 1)
    axes = _new_axes(*measure_tree(shown)) if axes is None else axes
    heights = _leaf_heights(parent)
    for row, above in enumerate(parent):
        drafted = row < len(shown.token)
        kind = (
            _BONUS
            if not drafted
            else _ACCEPTED
            if shown.accepted[row]
            else "0.6"
            if shown.verified[row]
            else _CUT
        )
        if above >= 0:
            axes.plot(depth[[above, row]], heights[[above, row]], color=kind, zorder=1)
        quoted = repr(decode_token(int(shown.token[row] if drafted else shown.bonus)))
        label = quoted[1:-1] if quoted[1:-1].strip() else quoted
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": kind}
        ink = "0.7" if kind == _CUT else "black"
        # parse_math is off because a token such as `$` is text.
        text = {"ha": "center", "color": ink, "parse_math": False}
        axes.text(depth[row], heights[row], label, va="center", fontsize=8, bbox=box, **text)
        if drafted and above >= 0:
            given, path = (
                f"{shown.conditional[row]:.2f}",
                f" ({shown.path[row]:.2f})" if depth[row] > 1 else "",
            )
            if shown.target is not None:
                path += f"\ntarget {show_probability(shown.target[row])}"
            axes.annotate(
                given + path,
                (depth[row], heights[row]),
                (0, -9),
                textcoords="offset points",
                va="top",
                fontsize=6,
                **text,
            )
    title = "\n".join(filter(None, (shown.title, shown.gap_line)))
    axes.set(xlabel="depth", yticks=[], title=title)
    axes.set(xlim=(-0.5, float(np.max(depth)) + 0.5), ylim=(heights.min() - 0.8, 0.6))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def measure_tree(shown: Picture) -> tuple[float, float]:
    """Return width and height in inches of a figure that holds the tree."""
    leaves = len(shown.token) - len(set(shown.parent[1:].tolist())) + 1
    leaf = 0.42 if shown.target is None else 0.54
    return 2 + 1.3 * (int(np.max(shown.depth)) + 1), 1 + leaf * leaves


def _leaf_heights(parent: np.ndarray) -> np.ndarray:
    """Place leaves below one another, depth first, and parents in the middle of their children.

    Args:
      parent: int [N], parents before their children.

    Returns:
      float [N], vertical positions.
    """
    children = [np.flatnonzero(parent == row) for row in range(len(parent))]
    heights, leaves, stack = np.zeros(len(parent)), 0, [0]
    while stack:
        row = stack.pop()
        stack.extend(children[row][::-1])
        if not len(children[row]):
            heights[row], leaves = -leaves, leaves + 1
    for row in reversed(range(len(parent))):  # parents come before children
        if len(children[row]):
            heights[row] = heights[children[row]].mean()
    return heights


def plot_tokens_per_round(outputs: Mapping[str, Output], axes: Any = None) -> Any:
    """Plot a histogram of tokens committed per round, bonus included.

    Args:
      outputs: {name: decode}.
      axes: matplotlib axes (default: those of a new figure).

    Returns:
      The axes.
    """
    axes = _new_axes(7, 3.5) if axes is None else axes
    width = 0.8 / len(outputs)
    for i, (name, out) in enumerate(outputs.items()):
        counts = np.asarray(out.stats.accept_hist)
        label = f"{name}: {out.stats.mean_acceptance_length:.2f} tokens per round"
        axes.bar(
            np.arange(len(counts)) + (i - (len(outputs) - 1) / 2) * width,
            counts / counts.sum(),
            width,
            label=label,
        )
    axes.set(
        xlabel="tokens committed in a round, bonus included",
        ylabel="share of rounds",
        xlim=(0.5, None),
    )
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return axes


def plot_speedups(records: Sequence[dict[str, Any]], figure: Any = None) -> Any:
    """Plot the speed-up over autoregressive decoding with 95 % intervals, one panel per domain.

    Args:
      records: results at one temperature, from `jaxspec.bench.report.summary.summarise`.
      figure: a matplotlib figure (default: a new one).

    Returns:
      The figure.
    """
    domains = dict.fromkeys(record["domain"] for record in records)
    methods = [
        name for name in dict.fromkeys(record["method"] for record in records) if name != "ar"
    ]
    figure = (
        _new_figure(3 + 2.4 * len(domains), 1.2 + 0.3 * max(len(methods), 1))
        if figure is None
        else figure
    )
    of = {(record["method"], record["domain"]): record for record in records}
    for panel, domain in zip(
        figure.subplots(1, len(domains), sharey=True, squeeze=False)[0], domains, strict=True
    ):
        for place, method in enumerate(methods):
            record = of.get((method, domain)) or {}
            speed, bounds = record.get("speedup"), record.get("speedup_ci")
            if speed is None:
                continue
            panel.barh(place, speed, color="C0" if speed >= 1 else "C3", height=0.7)
            if bounds:
                panel.plot(bounds, [place, place], color="black", marker="|", linewidth=1)
        panel.axvline(1, color="0.5", linewidth=1)
        panel.set(
            title=domain,
            xlabel="speed over ar",
            yticks=range(len(methods)),
            ylim=(len(methods) - 0.5, -0.5),
        )
        panel.set_yticklabels(methods, fontsize=8, parse_math=False)
    figure.tight_layout()
    return figure


def plot_acceptance(records: Sequence[dict[str, Any]], figure: Any = None) -> Any:
    """Plot the share of rounds that accepted at least 1, 2, ... drafted tokens, a line per method.

    Args:
      records: results at one temperature and in one domain, from
        `jaxspec.bench.report.summary.summarise`. The ten methods with the longest acceptance are
        shown.
      figure: a matplotlib figure (default: a new one).

    Returns:
      The figure.
    """
    drafted = [record for record in records if record.get("acceptance_rate_per_pos")]
    chosen = sorted(drafted, key=lambda record: -record["mean_acceptance_length"])[:LINES]
    figure = _new_figure(7, 4) if figure is None else figure
    axes = figure.subplots()
    for record in chosen:
        rates = record["acceptance_rate_per_pos"]
        label = f"{record['method']} ({record['mean_acceptance_length']:.2f})"
        axes.plot(range(1, len(rates) + 1), rates, "o-", markersize=3, label=label)
    axes.set(xlabel="drafted tokens accepted, at least", ylabel="share of rounds", ylim=(0, 1))
    axes.xaxis.get_major_locator().set_params(integer=True)
    if chosen:
        axes.legend(fontsize=7, title="mean acceptance length in brackets", title_fontsize=7)
    figure.tight_layout()
    return figure


def _new_figure(width: float, height: float) -> Any:
    """Make a figure that neither windows nor notebooks show by themselves."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _new_axes(width: float, height: float) -> Any:
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height))[1]
