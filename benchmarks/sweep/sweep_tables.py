"""The text report of `python -m benchmarks sweep`."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.sweep.aims import list_aims, list_domains, list_singles
from benchmarks.sweep.figures import MEAN
from jaxspec.bench.report.table import (
    Column,
    Table,
    fixed,
    percent,
    show_agreement,
    tabulate,
    with_interval,
)
from jaxspec.costs.expected_speed import draft_cost


def render_sweep(report: dict[str, Any]) -> str:
    """Render speeds, hindsight, realised budgets, predictions, surrogate, beams and aims by
    temperature.

    Args:
      report: result of `sweep_budgets`.
    """
    device, count = report["device"], len(report["prompts"])
    head = (
        f"{count} prompts, {report['repeats']} repeats, {report['dtype']} on {device['kind']} ({device['cpus']} host cores), "
        f"jax {report['versions']['jax']}; intervals of 95 %: what other prompts of these domains might give"
    )
    scramble = report.get("settings", {}).get("scramble")
    lines = (
        [head]
        if scramble is None
        else [head, f"the drafter's weights are scrambled (seed {scramble})"]
    )
    return "\n\n".join(["\n".join(lines), *(_render_one(one) for one in report["temperatures"])])


def _render_one(one: dict[str, Any]) -> str:
    """Render the tables of one temperature."""
    titled = [
        ("speed-up over ar", _tabulate_speeds(one)),
        ("mean acceptance length, bonus included", _tabulate_lengths(one)),
    ]
    if one["hindsight"]:
        titled += [
            (
                "policy over the best fixed budget in hindsight (each resample of prompts chooses its own)",
                _tabulate_hindsight(one),
            ),
            ("policy over every single budget, mean over the domains", _tabulate_margins(one)),
            (
                "rows that the policy verified, share of rounds (0: did not draft)",
                _tabulate_sizes(one["sizes"]),
            ),
            ("predicted against measured time of decodes", _tabulate_errors(one["prediction"])),
            (
                "expected against committed tokens of drafted rounds (unit: the round; if exact: were the scores "
                "exact acceptance probabilities)",
                tabulate_surrogate(one["surrogate"]),
            ),
        ]
    for kind, table in one.get("tables", {}).items():
        titled.append(
            (
                f"c = T_draft / (gamma T_verify) of {kind} costs, by rows and cached tokens",
                _tabulate_costs(table),
            )
        )
    if one["best_first_over_beam"]:
        titled.append(
            (
                "acceptance length and speed over those of the beam with the same budget",
                tabulate_pairs(one["best_first_over_beam"]),
            )
        )
    if one["over_first_policy"]:
        title = "acceptance length and speed over those of the first policy"
        titled.append((title, tabulate_pairs(one["over_first_policy"])))
    parts = [f"{title}\n{table.to_text()}" for title, table in titled]
    aims = tabulate(("aim", "here", "met"), list_aims(one))
    return "\n\n".join([f"=== temperature {one['temperature']:g}", *parts, aims.to_text()])


def _by_method(records: Iterable[dict[str, Any]]) -> dict[str, dict[str, dict[str, Any]]]:
    """Group records as {method: {domain: record}}, in order of appearance."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    for record in records:
        found.setdefault(record["method"], {})[record["domain"]] = record
    return found


def _tabulate_speeds(one: dict[str, Any]) -> Table:
    domains = [*list_domains(one), MEAN]
    columns = [Column("method"), *(Column(domain, with_interval()) for domain in domains)]
    columns += [Column("= ar", show_agreement), Column("repeats' spread", percent())]
    rows = []
    for method, own in _by_method([*one["results"], *one["averages"]]).items():
        speeds = [(own[domain]["speedup"], own[domain]["speedup_ci"]) for domain in domains]
        whole = own["all"]
        rows.append([method, *speeds, whole["differing_prompts"], whole["repeat_spread"]])
    return Table(columns, rows)


def _tabulate_lengths(one: dict[str, Any]) -> Table:
    domains = [*list_domains(one), "all"]
    columns = [Column("method"), *(Column(domain, with_interval()) for domain in domains)]
    keys = ("mean_acceptance_length", "mean_acceptance_length_ci")
    return Table(
        columns,
        [
            [method, *([own[domain][key] for key in keys] for domain in domains)]
            for method, own in _by_method([*one["results"], *one["beams"]]).items()
        ],
    )


def _tabulate_hindsight(one: dict[str, Any]) -> Table:
    columns = [*map(Column, ("policy", "domain", "best fixed budget"))]
    found = [record for record in one["hindsight"] if record["domain"] != "single"]
    return Table(
        [*columns, Column("ratio", with_interval(3))],
        [[r["policy"], r["domain"], r["best"], (r["ratio"], r["ratio_ci"])] for r in found],
    )


def _tabulate_margins(one: dict[str, Any]) -> Table:
    rows = []
    for record in list_singles(one):
        for budget, (ratio, *bounds) in record["margins"].items():
            star = " (the best one)" if budget == record["best"] else ""
            pair = (ratio, None if None in bounds else bounds)
            rows.append([record["policy"], budget + star, pair])
    return Table([Column("policy"), Column("budget"), Column("ratio", with_interval(3))], rows)


def _tabulate_sizes(records: Iterable[dict[str, Any]]) -> Table:
    columns = [*map(Column, ("policy", "domain", "rounds"))]
    columns += [Column("mean rows", fixed(1)), Column("rows: share")]
    rows = []
    for record in records:
        sizes = record["sizes"]
        total = max(sum(sizes), 1)
        # A round that does not draft verifies the root.
        mean = sum(max(n, 1) * count for n, count in enumerate(sizes)) / total
        shares = "  ".join(
            f"{n}: {100 * count / total:.0f}%"
            for n, count in enumerate(sizes)
            if count >= 0.005 * total
        )
        rows.append([record["method"], record["domain"], sum(sizes), mean, shares])
    return Table(columns, rows)


def _tabulate_errors(records: Iterable[dict[str, Any]]) -> Table:
    columns = [
        *map(Column, ("policy", "domain", "decodes")),
        Column("median error", with_interval(3)),
        Column("bias", fixed(3)),
        Column("predicted ms/round", fixed(2)),
        Column("measured ms/round", fixed(2)),
    ]
    keys = ("bias", "predicted_ms", "measured_ms")
    return Table(
        columns,
        [
            [r["method"], r["domain"], r["decodes"], (r["error"], r["error_ci"])]
            + [r[key] for key in keys]
            for r in records
        ],
    )


def tabulate_surrogate(records: Iterable[dict[str, Any]]) -> Table:
    """Tabulate records of `benchmarks.sweep.predictions.fit_surrogate`."""
    columns = [
        *map(Column, ("policy", "domain", "scores", "rounds")),
        Column("Pearson", with_interval()),
        Column("if exact", fixed(2)),
        Column("Spearman", with_interval()),
        *(Column(title, fixed(2)) for title in ("expected", "committed")),
        Column("Pearson of prompts' means", fixed(2)),
    ]
    rows = []
    for r in records:
        named = [r[key] for key in ("method", "domain", "estimate", "rounds")]
        pearson, spearman = ((r[key], r[f"{key}_ci"]) for key in ("pearson", "spearman"))
        means = [r[key] for key in ("expected", "committed", "pearson_of_prompts")]
        rows.append([*named, pearson, r["attainable"], spearman, *means])
    return Table(columns, rows)


def _tabulate_costs(table: dict[str, Any]) -> Table:
    """Tabulate JetSpec's c (equation 2, appendix G); gamma is the longest drafted path."""
    columns = [Column("rows"), Column("gamma")]
    columns += [Column(f"at {context:g}", fixed()) for context in table["contexts"]]
    rows = []
    for number, width in enumerate(table["widths"]):
        pairs = zip(table["draft"], table["verify"][number], strict=True)
        costs = [draft_cost(*pair, table["depth"]) for pair in pairs]
        rows.append([width, table["depth"], *costs])
    return Table(columns, rows)


def tabulate_pairs(records: Iterable[dict[str, Any]]) -> Table:
    """Tabulate records of `benchmarks.sweep.figures.compare_pairs`."""
    columns = [Column("method"), Column("domain"), Column("length", fixed(2))]
    columns += [Column("other's", fixed(2)), Column("ratio", with_interval(3))]
    columns += [Column("tokens/s", fixed(1)), Column("other's", fixed(1))]
    columns += [Column("ratio", with_interval(3))]
    rows = []
    for r in records:
        lengths = [r["length"], r["other_length"], (r["ratio"], r["ratio_ci"])]
        speeds = [r["speed"], r["other_speed"], (r["speed_ratio"], r["speed_ratio_ci"])]
        rows.append([r["method"], r["domain"], *lengths, *speeds])
    return Table(columns, rows)
