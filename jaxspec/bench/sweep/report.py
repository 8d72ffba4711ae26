"""The report of a sweep as text."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from jaxspec.bench.report.table import align, show
from jaxspec.bench.sweep.figures import MEAN

# What the controller is held against: ratio to the best fixed budget, error of predicted times,
# correlation, ratio to `ar`.
NEAR, ERROR, CORRELATION, KEPT = 0.97, 0.10, 0.75, 0.95


def render(report: dict[str, Any]) -> str:
    """Every temperature: speeds, hindsight, realised budgets, predictions, surrogate, beams, and
    what is aimed at.
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
    return "\n\n".join(["\n".join(lines), *(_at(one) for one in report["temperatures"])])


def _at(one: dict[str, Any]) -> str:
    parts = [
        f"=== temperature {one['temperature']:g}",
        "speed-up over ar\n" + align(_speeds(one)),
        "mean acceptance length, bonus included\n" + align(_lengths(one)),
    ]
    if one["hindsight"]:
        parts += [
            "policy over the best fixed budget in hindsight (each resample of prompts chooses its own)\n"
            + align(_hindsight(one)),
            "policy over every single budget, mean over the domains\n" + align(_margins(one)),
            "rows that the policy verified, share of rounds (0: did not draft)\n"
            + align(_sizes(one["sizes"])),
            "predicted against measured time of decodes\n" + align(_prediction(one["prediction"])),
            "expected against committed tokens of drafted rounds (unit: the round; if exact: were the scores "
            "exact acceptance probabilities)\n" + align(_surrogate(one)),
        ]
    if one["best_first_over_beam"]:
        parts.append(
            "acceptance length over that of the beam with the same budget\n" + align(_beams(one))
        )
    parts.append(align([["aim", "here", "met"], *_aims(one)]))
    return "\n\n".join(parts)


def _speeds(one) -> list[list[str]]:
    records = [*one["results"], *one["averages"]]
    domains = [*(domain for domain in _domains(one)), MEAN]
    rows = [["method", *domains, "= ar", "repeats' spread"]]
    for method in dict.fromkeys(record["method"] for record in records):
        own = {record["domain"]: record for record in records if record["method"] == method}
        same = "yes" if own["all"]["identical_to_ar"] else f"NO ({own['all']['differing_prompts']})"
        spread = f"{100 * own['all']['repeat_spread']:.0f}%"
        rows.append(
            [
                method,
                *(_with(own[d]["speedup"], own[d]["speedup_ci"]) for d in domains),
                same,
                spread,
            ]
        )
    return rows


def _lengths(one) -> list[list[str]]:
    records, domains = [*one["results"], *one["beams"]], [*_domains(one), "all"]
    rows = [["method", *domains]]
    for method in dict.fromkeys(record["method"] for record in records):
        own = {record["domain"]: record for record in records if record["method"] == method}
        cells = (
            _with(own[d]["mean_acceptance_length"], own[d]["mean_acceptance_length_ci"])
            for d in domains
        )
        rows.append([method, *cells])
    return rows


def _hindsight(one) -> list[list[str]]:
    found = [record for record in one["hindsight"] if record["domain"] != "single"]
    return [
        ["policy", "domain", "best fixed budget", "ratio"],
        *(
            [r["policy"], r["domain"], r["best"], _with(r["ratio"], r["ratio_ci"], 3)]
            for r in found
        ),
    ]


def _margins(one) -> list[list[str]]:
    rows = [["policy", "budget", "ratio"]]
    for record in _singles(one):
        for budget, (ratio, *bounds) in record["margins"].items():
            star = " (the best one)" if budget == record["best"] else ""
            rows.append(
                [
                    record["policy"],
                    budget + star,
                    _with(ratio, None if None in bounds else bounds, 3),
                ]
            )
    return rows


def _sizes(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = [["policy", "domain", "rounds", "mean rows", "rows: share"]]
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
        rows.append([record["method"], record["domain"], str(sum(sizes)), show(mean, 1), shares])
    return rows


def _prediction(records: Sequence[dict[str, Any]]) -> list[list[str]]:
    rows = [
        [
            "policy",
            "domain",
            "decodes",
            "median error",
            "bias",
            "predicted ms/round",
            "measured ms/round",
        ]
    ]
    for r in records:
        ms = [show(r["predicted_ms"], 2), show(r["measured_ms"], 2)]
        rows.append(
            [
                r["method"],
                r["domain"],
                str(r["decodes"]),
                _with(r["error"], r["error_ci"], 3),
                show(r["bias"], 3),
                *ms,
            ]
        )
    return rows


def _surrogate(one) -> list[list[str]]:
    heads = [
        "policy",
        "domain",
        "scores",
        "rounds",
        "Pearson",
        "if exact",
        "Spearman",
        "expected",
        "committed",
    ]
    rows = [[*heads, "Pearson of prompts' means"]]
    for r in one["surrogate"]:
        fit = [
            _with(r["pearson"], r["pearson_ci"]),
            show(r["attainable"], 2),
            _with(r["spearman"], r["spearman_ci"]),
        ]
        means = [show(r["expected"], 2), show(r["committed"], 2), show(r["pearson_of_prompts"], 2)]
        rows.append([r["method"], r["domain"], r["estimate"], str(r["rounds"]), *fit, *means])
    return rows


def _beams(one) -> list[list[str]]:
    rows = [["method", "domain", "length", "beam's", "ratio"]]
    for r in one["best_first_over_beam"]:
        lengths = [show(r["length"], 2), show(r["other_length"], 2)]
        rows.append([r["method"], r["domain"], *lengths, _with(r["ratio"], r["ratio_ci"], 3)])
    return rows


def _aims(one) -> list[list[str]]:
    """What is aimed at, the figure here, and whether it is met; by the figures themselves, not by
    the ends of intervals.
    """
    differing = [
        record["method"]
        for record in one["results"] + one["beams"]
        if not record["identical_to_ar"]
    ]
    rows = [
        [
            "tokens equal ar's on every prompt",
            ", ".join(dict.fromkeys(differing)) or "all",
            "no" if differing else "yes",
        ]
    ]
    for single in _singles(one):
        policy = single["policy"]
        ratios = {
            r["domain"]: r["ratio"]
            for r in one["hindsight"]
            if r["policy"] == policy and r["domain"] in _domains(one)
        }
        error = next(
            r["error"] for r in one["prediction"] if (r["method"], r["domain"]) == (policy, "all")
        )
        plain = {
            r["domain"]: r["speedup"]
            for r in one["results"]
            if r["method"] == policy and r["domain"] in ratios
        }
        fits = [
            (r["estimate"], r["pearson"])
            for r in one["surrogate"]
            if (r["method"], r["domain"]) == (policy, "all")
        ]
        rows.append(
            _least(f"{policy}: best fixed budget of each domain, ratio >= {NEAR}", ratios, NEAR)
        )
        rows.append(
            _least(
                f"{policy}: every single budget, mean over domains, ratio > 1",
                {"": single["ratio"]},
                1,
                True,
            )
        )
        rows.append(
            [
                f"{policy}: median error of predicted times <= {ERROR:.2f}",
                show(error, 3),
                _met(error, -ERROR, -1),
            ]
        )
        rows += [
            [f"{policy}: Pearson, {name} scores >= {CORRELATION}", show(r, 3), _met(r, CORRELATION)]
            for name, r in fits
        ]
        rows.append(_least(f"{policy}: ar in every domain, ratio >= {KEPT}", plain, KEPT))
    beams = {
        f"{r['method']} {r['domain']}": r["ratio"]
        for r in one["best_first_over_beam"]
        if r["domain"] in _domains(one)
    }
    if beams:
        rows.append(
            _least("acceptance of the beam in every domain at every budget, ratio >= 1", beams, 1)
        )
    return rows


def _least(aim: str, values: dict[str, float], least: float, above: bool = False) -> list[str]:
    worst = min(values, key=values.get)
    return [
        aim,
        f"{values[worst]:.3f} {worst}".strip(),
        "yes" if values[worst] > least - (not above) * 1e-12 else "no",
    ]


def _met(value: float | None, least: float, sign: int = 1) -> str:
    return "-" if value is None else "yes" if sign * value >= least else "no"


def _singles(one) -> list[dict[str, Any]]:
    return [record for record in one["hindsight"] if record["domain"] == "single"]


def _domains(one) -> list[str]:
    return [
        domain
        for domain in dict.fromkeys(record["domain"] for record in one["results"])
        if domain != "all"
    ]


def _with(value: float | None, bounds: Sequence[float] | None, digits: int = 2) -> str:
    return show(value, digits) + (
        "" if bounds is None else f" [{show(bounds[0], digits)}, {show(bounds[1], digits)}]"
    )
