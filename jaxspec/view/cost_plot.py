"""Plot fitted round costs beside the measured ones, as BASTION's figure 9a does; needs matplotlib."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from jaxspec.costs.round_costs import RoundCosts
from jaxspec.view.adaptation import save_figure


def plot_fit(costs: RoundCosts, path: Path) -> None:
    """Write a picture of costs that `jaxspec.costs.fit_costs.fit_costs` fitted.

    Left: milliseconds of verification over its rows, measured (dots), by the fit (lines) and by the
    bare roofline (dashed), for each context. Right: the root mean square errors.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    measured, errors = costs.about["measured"], costs.about["root_mean_square_errors"]
    figure, (left, right) = plt.subplots(1, 2, figsize=(11, 4.2), width_ratios=(2, 1))
    rows = np.arange(1, costs.widths[-1] + 1)
    times = zip(
        measured["contexts"],
        np.transpose(measured["seconds"]),
        np.transpose(measured["bare"]),
        strict=True,
    )
    for number, (context, seconds, bare) in enumerate(times):
        colour = f"C{number}"
        left.plot(measured["widths"], 1e3 * seconds, "o", ms=4, color=colour)
        left.plot(measured["widths"], 1e3 * bare, "--", lw=1, color=colour)
        whole = costs.seconds(context, rows=rows) - costs.seconds(context, rows=1)
        fitted = whole + np.interp(context, costs.contexts, costs.plain)
        left.plot(rows, 1e3 * fitted, color=colour, label=f"{context:.0f} cached tokens")
    left.set(xlabel="verified rows, root included", ylabel="ms of verification", ylim=(0, None))
    left.legend(fontsize=8)
    shown = {name: 1e3 * error for name, error in errors.items() if error is not None}
    right.bar([name.replace("_", "\n") for name in shown], list(shown.values()), color="0.6")
    right.set(ylabel="root mean square error, ms")
    save_figure(figure, path, plt)
