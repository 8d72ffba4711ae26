"""Write the tables and the plot of a sweep, anew after each of its runs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.training.held_out import tabulate_classes, tabulate_slots
from benchmarks.training.pairs import paired_tables
from benchmarks.training.recipes import COMPARISONS, Recipe
from jaxspec.io.files.atomic import write_text
from training.run.metrics import read_metrics


def write_report(out: Path, name: str, scale: str, sizes: dict, results: Sequence[dict]) -> None:
    """Write `results.json`, `results.md` and `results.png` to `out`.

    Args:
      out: the sweep's folder, with one folder per run.
      name, scale, sizes: what was run.
      results: from `benchmarks.training.sweep.run_recipe`, in order.
    """
    content = {"sweep": name, "scale": scale, "sizes": sizes, "runs": list(results)}
    write_text(out / "results.json", json.dumps(content, indent=1) + "\n")
    write_text(out / "results.md", _page(name, scale, sizes, results))
    _plot(out, results)


def collect_comparison(title: str, results: Sequence[dict]) -> dict[str, dict[str, list[dict]]]:
    """Collect the results of one comparison, one {domain: acceptance length} per seed.

    Returns:
      {label: {method: [one dict per seed]}}.
    """
    belongs, label = COMPARISONS[title]
    found: dict[str, dict[str, list[dict]]] = {}
    for result in results:
        if belongs(result["recipe"]):
            methods = found.setdefault(label(result["recipe"]), {})
            for method, by_domain in result["acceptance"].items():
                methods.setdefault(method, []).append(by_domain)
    return found


def _page(name: str, scale: str, sizes: dict, results: Sequence[dict]) -> str:
    seconds = sum(result["train_seconds"] + result["evaluate_seconds"] for result in results)
    lines = [
        f"Sweep `{name}`, scale `{scale}`: {', '.join(f'{key} {value}' for key, value in sizes.items())}. "
        f"{len(results)} runs, {seconds / 60:.0f} minutes on {results[0]['device']}, jax {results[0]['jax']}.",
        "",
        "The tables show the mean acceptance length with the bonus token at T=0 on held-out "
        "prompts, or at the temperature named, over all rounds of a domain. Cells are means over seeds; ± is half the distance "
        "between the largest and the smallest seed. `tree@N` is a best-first tree of N rows (DDTree), `expand@N` JetSpec's.",
    ]
    for title in COMPARISONS:
        found = collect_comparison(title, results)
        if len(found) > 1:
            belongs, label = COMPARISONS[title]
            chosen = [result for result in results if belongs(result["recipe"])]
            lines += ["", f"## {title}", "", *_table(found), *paired_tables(chosen, label)]
    lines += _slots(results)
    return "\n".join(lines) + "\n"


def _slots(results: Sequence[dict]) -> list[str]:
    """Report rank classes, and acceptance by slot within and across blocks, on held-out answers.

    Only for runs whose drafter has a rank head.
    """
    lines = []
    for result in results:
        if found := result.get("held_out"):
            recipe = result["recipe"]
            title = f"{recipe['variant']}, seed {recipe['seed']}, {found['positions']} positions"
            tables = (tabulate_classes(found), tabulate_slots(found))
            lines += ["", f"### {title}", ""]
            lines += "\n\n".join(table.to_markdown() for table in tables).splitlines()
    if not lines:
        return []
    heading = "## Rank classes and slots on held-out answers (SpecBlock, Table 3 and Figure 5)"
    return ["", heading, *lines]


def _table(found: dict[str, dict[str, list[dict]]]) -> list[str]:
    domains = list(next(iter(next(iter(found.values())).values()))[0])
    rows = [f"| | seeds | method | {' | '.join(domains)} |", "| --- " * (len(domains) + 3) + "|"]
    for label, methods in found.items():
        for method, seeds in methods.items():
            cells = [_cell([by_domain[domain] for by_domain in seeds]) for domain in domains]
            rows.append(f"| {label} | {len(seeds)} | {method} | {' | '.join(cells)} |")
    return rows


def _cell(values: Sequence[float]) -> str:
    spread = f" ± {(max(values) - min(values)) / 2:.2f}" if len(values) > 1 else ""
    return f"{np.mean(values):.2f}{spread}"


def _plot(out: Path, results: Sequence[dict]) -> None:
    """Plot the acceptance of chains during training, averaged over seeds."""
    from matplotlib.figure import Figure

    curves: dict[str, list[np.ndarray]] = {}
    for result in results:
        name = Recipe(**result["recipe"]).name
        run = name.rpartition("-seed")[0]
        metrics = read_metrics(out / name / "metrics.jsonl")
        points = [
            (record["step"], record["tau_mean"]) for record in metrics if "tau_mean" in record
        ]
        curves.setdefault(run, []).append(np.asarray(points))
    figure = Figure(figsize=(8, 5), layout="constrained")
    axes = figure.subplots()
    for run, seeds in curves.items():
        length = min(map(len, seeds))
        mean = np.mean([points[:length] for points in seeds], axis=0)
        axes.plot(
            mean[:, 0],
            mean[:, 1],
            marker="o",
            label=f"{run} ({len(seeds)} seed{'s' * (len(seeds) > 1)})",
        )
    axes.set(
        xlabel="step",
        ylabel="tokens per round, chain, T=0, mean of domains",
        title="Acceptance as training proceeds",
    )
    axes.legend(fontsize="small")
    figure.savefig(out / "results.png", dpi=120)
