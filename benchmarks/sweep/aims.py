"""The aims of a sweep: list them with the figures measured here and whether they are met."""

from __future__ import annotations

from typing import Any

from jaxspec.bench.report.table import fixed

# Aims of the controller: ratio to the best fixed budget, error of predicted times, correlation of
# expected with committed tokens, ratio to `ar`.
NEAR, ERROR, CORRELATION, KEPT = 0.97, 0.10, 0.75, 0.95


def list_aims(one: dict[str, Any]) -> list[list[str]]:
    """List (aim, figure here, whether it is met) of one temperature.

    The figure itself decides whether an aim is met; its interval does not matter.
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
    for single in list_singles(one):
        rows += _list_policy_aims(one, single)
    beams = {
        f"{r['method']} {r['domain']}": r["ratio"]
        for r in one["best_first_over_beam"]
        if r["domain"] in list_domains(one)
    }
    if beams:
        rows.append(
            _least("acceptance of the beam in every domain at every budget, ratio >= 1", beams, 1)
        )
        speeds = {r["method"]: r["speed_ratio"] for r in one["best_first_over_beam"]}
        rows.append(_least("speed of the beam over all prompts, ratio >= 1", speeds, 1))
    return rows


def _list_policy_aims(one: dict[str, Any], single: dict[str, Any]) -> list[list[str]]:
    """List the aims of one policy; `single` is its record of `list_singles`."""
    policy, domains = single["policy"], list_domains(one)
    ratios = {
        r["domain"]: r["ratio"]
        for r in one["hindsight"]
        if r["policy"] == policy and r["domain"] in domains
    }
    plain = {
        r["domain"]: r["speedup"]
        for r in one["results"]
        if r["method"] == policy and r["domain"] in ratios
    }
    error = next(
        r["error"] for r in one["prediction"] if (r["method"], r["domain"]) == (policy, "all")
    )
    fits = [
        (r["estimate"], r["pearson"])
        for r in one["surrogate"]
        if (r["method"], r["domain"]) == (policy, "all")
    ]
    best = f"{policy}: best fixed budget of each domain, ratio >= {NEAR}"
    every = f"{policy}: every single budget, mean over domains, ratio > 1"
    timed = f"{policy}: median error of predicted times <= {ERROR:.2f}"
    return [
        _least(best, ratios, NEAR),
        _least(every, {"": single["ratio"]}, 1, above=True),
        [timed, fixed(3)(error), _met(error, -ERROR, -1)],
        *(
            [
                f"{policy}: Pearson, {name} scores >= {CORRELATION}",
                fixed(3)(r),
                _met(r, CORRELATION),
            ]
            for name, r in fits
        ),
        _least(f"{policy}: ar in every domain, ratio >= {KEPT}", plain, KEPT),
    ]


def _least(aim: str, values: dict[str, float], least: float, above: bool = False) -> list[str]:
    worst = min(values, key=values.get)
    return [
        aim,
        f"{values[worst]:.3f} {worst}".strip(),
        "yes" if values[worst] > least - (not above) * 1e-12 else "no",
    ]


def _met(value: float | None, least: float, sign: int = 1) -> str:
    return "-" if value is None else "yes" if sign * value >= least else "no"


def list_singles(one: dict[str, Any]) -> list[dict[str, Any]]:
    """List the records that compare a policy with every single budget."""
    return [record for record in one["hindsight"] if record["domain"] == "single"]


def list_domains(one: dict[str, Any]) -> list[str]:
    """List the domains of a temperature, without `all`."""
    return [
        domain
        for domain in dict.fromkeys(record["domain"] for record in one["results"])
        if domain != "all"
    ]
