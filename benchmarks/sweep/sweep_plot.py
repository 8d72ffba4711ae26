"""Pictures of a sweep; matplotlib (the `bench` extra) is imported when one is drawn."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.sweep.figures import MEAN


def plot_sweep(report: dict[str, Any], path: Path) -> None:
    """Write a picture of a report of `sweep`, one row per temperature.

    Left: speed-up over the budget, a line per domain and one for their mean, with 95 % intervals;
    each policy's star is at its mean number of verified rows. Middle: predicted against measured
    time of a round, a point per decode. Right: expected against committed tokens; drafted rounds
    are sorted by expected tokens and split into tenths, shown with mean and standard error.
    """
    import matplotlib

    matplotlib.use("agg")
    import matplotlib.pyplot as plt

    rows = report["temperatures"]
    figure, axes = plt.subplots(len(rows), 3, figsize=(15, 0.5 + 4.2 * len(rows)), squeeze=False)
    for one, panels in zip(rows, axes, strict=True):
        _budgets(one, panels[0])
        _times(one, panels[1])
        _surrogate(one, panels[2])
        panels[0].set_title(f"temperature {one['temperature']:g}")
    figure.tight_layout()
    figure.savefig(path, dpi=120)
    plt.close(figure)


def _budgets(one: dict[str, Any], axes) -> None:
    records = [
        record for record in (*one["results"], *one["averages"]) if record["domain"] != "all"
    ]
    policies = dict.fromkeys(record["method"] for record in one["sizes"])
    for number, domain in enumerate(dict.fromkeys(record["domain"] for record in records)):
        colour = "black" if domain == MEAN else f"C{number}"
        own = {record["method"]: record for record in records if record["domain"] == domain}
        fixed = sorted(
            (parse_budget(name), record) for name, record in own.items() if name not in policies
        )
        ends = [record["speedup_ci"] or 2 * [record["speedup"]] for _, record in fixed]
        speeds = np.array([record["speedup"] for _, record in fixed])
        bars = np.abs(np.transpose(ends) - speeds)
        axes.errorbar(
            [budget for budget, _ in fixed],
            speeds,
            bars,
            fmt="o-",
            ms=3,
            color=colour,
            capsize=2,
            label=domain,
        )
        for policy in policies:
            rows = _mean_rows(one, policy, "all" if domain == MEAN else domain)
            axes.plot(
                rows, own[policy]["speedup"], "*", ms=14, color=colour, markeredgecolor="white"
            )
    axes.axhline(1, color="0.8", zorder=0)
    budgets = sorted(
        {parse_budget(record["method"]) for record in records if record["method"] not in policies}
    )
    axes.set(
        xscale="log",
        xlabel="rows verified in a round (star: a policy's mean)",
        ylabel="speed-up over ar",
    )
    axes.set_xticks(budgets, labels=[str(budget) for budget in budgets])
    axes.minorticks_off()
    axes.legend(fontsize=8)


def parse_budget(name: str) -> int:
    """Read the budget in a method's name; 1 for `ar`."""
    found = re.search(r"@(\d+)", name)
    return int(found[1]) if found else 1


def _mean_rows(one: dict[str, Any], policy: str, domain: str) -> float:
    sizes = next(r["sizes"] for r in one["sizes"] if (r["method"], r["domain"]) == (policy, domain))
    return sum(max(rows, 1) * count for rows, count in enumerate(sizes)) / max(sum(sizes), 1)


def _times(one: dict[str, Any], axes) -> None:
    for method in dict.fromkeys(decode["method"] for decode in one["decodes"]):
        found = [
            decode for decode in one["decodes"] if decode["method"] == method and decode["rounds"]
        ]
        points = [
            [1e3 * decode[side] / decode["rounds"] for decode in found]
            for side in ("measured", "predicted")
        ]
        axes.plot(*points, ".", alpha=0.5, label=method)
    if one["decodes"]:
        _diagonal(axes)
    axes.set(xlabel="measured, ms a round", ylabel="predicted, ms a round")


def _surrogate(one: dict[str, Any], axes) -> None:
    for method in dict.fromkeys(record["method"] for record in one["rounds"]):
        drafted = [
            record for record in one["rounds"] if record["method"] == method and record["rows"] > 1
        ]
        for estimate in ("raw", "corrected"):
            pairs = np.array(
                sorted((record[estimate], record["committed"]) for record in drafted)
            ).reshape(-1, 2)
            parts = [part for part in np.array_split(pairs, 10) if len(part)]
            means = np.array([part.mean(0) for part in parts]).reshape(-1, 2)
            errors = [part[:, 1].std() / np.sqrt(len(part)) for part in parts]
            axes.errorbar(
                means[:, 0],
                means[:, 1],
                errors,
                fmt="o-",
                ms=3,
                capsize=2,
                label=f"{method}, {estimate}",
            )
    if one["rounds"]:
        _diagonal(axes)
    axes.set(xlabel="expected tokens of a round", ylabel="committed tokens of a round")


def _diagonal(axes) -> None:
    ends = [min(*axes.get_xlim(), *axes.get_ylim()), max(*axes.get_xlim(), *axes.get_ylim())]
    axes.plot(ends, ends, color="0.7", zorder=0)
    axes.legend(fontsize=8)
