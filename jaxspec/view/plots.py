"""Pictures of a decode and of a benchmark; matplotlib (the `bench` extra) is imported when one is
drawn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from jaxspec.engine.output import Output, TracedRound
from jaxspec.view.pictures import Picture, picture_of

_ACCEPTED, _BONUS, _CUT = "tab:green", "tab:orange", "0.85"
# Methods that one picture of acceptance by position has room for.
LINES = 10


def plot_tree(traced: TracedRound | Picture, decode_token: Callable[[int], str] = str, axes=None):
    """Draw a round's draft tree: the accepted path green, the bonus token orange, rows that a
    policy cut pale.

    Below a token stand its probability given its parent and, where its depth is above 1, that of
    its path.

    Args:
      traced: an entry of `Output.rounds`, from `decode(…, trace=True)`, or what
        `jaxspec.view.pictures.picture` makes of one.
      decode_token: token id to the text of its node.
      axes: matplotlib axes, or None for a new figure.

    Returns:
      The axes.
    """
    shown = traced if isinstance(traced, Picture) else picture_of(traced)
    parent, depth = shown.parent, shown.depth
    if shown.bonus is not None:  # a leaf like the others, after them
        parent, depth = np.append(parent, shown.end), np.append(depth, depth[shown.end] + 1)
    axes = _new_axes(*tree_size(shown)) if axes is None else axes
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
        # parse_math: a token such as `$` is text.
        text = {"ha": "center", "color": ink, "parse_math": False}
        axes.text(depth[row], heights[row], label, va="center", fontsize=8, bbox=box, **text)
        if drafted and above >= 0:
            given, path = (
                f"{shown.conditional[row]:.2f}",
                f" ({shown.path[row]:.2f})" if depth[row] > 1 else "",
            )
            axes.annotate(
                given + path,
                (depth[row], heights[row]),
                (0, -9),
                textcoords="offset points",
                va="top",
                fontsize=6,
                **text,
            )
    axes.set(xlabel="depth", yticks=[], title=shown.title)
    axes.set(xlim=(-0.5, float(np.max(depth)) + 0.5), ylim=(heights.min() - 0.8, 0.6))
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def tree_size(shown: Picture) -> tuple[float, float]:
    """Width and height in inches of a figure that holds the tree."""
    leaves = len(shown.token) - len(set(shown.parent[1:].tolist())) + 1
    return 2 + 1.3 * (int(np.max(shown.depth)) + 1), 1 + 0.42 * leaves


def _leaf_heights(parent: np.ndarray) -> np.ndarray:
    """Vertical position of each row: leaves below one another, depth first; a parent in the middle
    of its children.
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


def plot_tokens_per_round(outputs: Mapping[str, Output], axes=None):
    """Histogram of the tokens that rounds committed, bonus included, for several decodes by name;
    returns the axes.
    """
    axes = _new_axes(7, 3.5) if axes is None else axes
    width = 0.8 / len(outputs)
    for i, (name, out) in enumerate(outputs.items()):
        counts = np.asarray(out.stats.accept_hist)
        label = f"{name}: {out.stats.mean_acceptance_length:.2f} tokens a round"
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


def plot_speedups(records: Sequence[dict[str, Any]], figure=None):
    """Bars of the speed-up over `ar`, a panel a domain, with the 95 % intervals; returns the
    figure.

    Args:
      records: of one temperature, as `jaxspec.bench.report.summary.summarise` returns them.
      figure: a matplotlib figure, or None for a new one.
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


def plot_acceptance(records: Sequence[dict[str, Any]], figure=None):
    """Share of the rounds that accepted so many drafted tokens at least, a line a method; returns
    the figure.

    Args:
      records: of one temperature and domain; the ten with the longest acceptance are drawn.
      figure: a matplotlib figure, or None for a new one.
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


def _new_figure(width: float, height: float):
    """A figure that no window or notebook shows by itself."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height))


def _new_axes(width: float, height: float):
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height))[1]
