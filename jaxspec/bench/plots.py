"""Pictures of a decode; matplotlib (the `bench` extra) is imported when one is drawn."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

from jaxspec.output import Output, Round


def plot_tree(traced: Round, decode_token: Callable[[int], str] = str, axes=None):
    """Draw the draft tree of one traced round, the accepted path highlighted.

    Args:
      traced: an entry of `Output.rounds`, from `decode(…, trace=True)`.
      decode_token: token id to the text of its node.
      axes: matplotlib axes, or None for a new figure.

    Returns:
      The axes.
    """
    tree = traced.tree
    axes = _new_axes(2 + 1.3 * int(np.max(tree.depth)), 1 + 0.28 * len(tree.token)) if axes is None else axes
    heights = _leaf_heights(tree.parent)
    accepted = set(traced.path)
    for row, parent in enumerate(tree.parent):
        colour = "tab:green" if row in accepted else "0.6"
        if parent >= 0:
            axes.plot(tree.depth[[parent, row]], heights[[parent, row]], color=colour, zorder=1)
        label = repr(decode_token(int(tree.token[row])))[1:-1]
        box = {"boxstyle": "round", "facecolor": "white", "edgecolor": colour}
        # parse_math: a token such as `$` is text.
        axes.text(tree.depth[row], heights[row], label, ha="center", va="center", fontsize=8, bbox=box, parse_math=False)
    axes.set(xlabel="depth", yticks=[], title=f"{len(tree.token)} rows verified, {len(traced.path)} tokens committed")
    axes.set_xlim(-0.5, float(np.max(tree.depth)) + 0.5)
    axes.xaxis.get_major_locator().set_params(integer=True)
    return axes


def _leaf_heights(parent: np.ndarray) -> np.ndarray:
    """Vertical position of each row: leaves below one another, depth first; a parent in the middle of its children."""
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
    """Histogram of the tokens that rounds committed, bonus included, for several decodes by name; returns the axes."""
    axes = _new_axes(7, 3.5) if axes is None else axes
    width = 0.8 / len(outputs)
    for i, (name, out) in enumerate(outputs.items()):
        counts = np.asarray(out.stats.accept_hist)
        label = f"{name}: {out.stats.mean_acceptance_length:.2f} tokens a round"
        axes.bar(np.arange(len(counts)) + (i - (len(outputs) - 1) / 2) * width, counts / counts.sum(), width, label=label)
    axes.set(xlabel="tokens committed in a round, bonus included", ylabel="share of rounds", xlim=(0.5, None))
    axes.xaxis.get_major_locator().set_params(integer=True)
    axes.legend()
    return axes


def _new_axes(width: float, height: float):
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height))[1]
