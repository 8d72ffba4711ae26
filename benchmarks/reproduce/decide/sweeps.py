"""Rules over sweeps of budgets: peaks, controllers against the best budget, surrogates, beams."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from benchmarks.reproduce.claim import CONFIRMED, REFUTED, UNDECIDED, Finding, Reports
from benchmarks.reproduce.decide.answers import Answers
from benchmarks.reproduce.decide.decodes import measured_rows
from benchmarks.reproduce.decide.rules import Figure, above, below, combine, find

Decide = Callable[[Reports], Finding]


def _sweep(reports: Reports, name: str) -> dict[str, Any]:
    return reports[name]["report"]["temperatures"][0]


def _figure(label: str, value: float, interval: Any) -> Figure:
    return Figure(label, value, interval and tuple(interval))


def _fixed(one: dict[str, Any], domain: str) -> dict[int, dict[str, Any]]:
    """Collect a domain's records of fixed budgets by rows."""
    found = {}
    for record in one["results"]:
        name = record["method"]
        if record["domain"] == domain and "@" in name and name.count("/") == 0:
            found[int(name.partition("@")[2])] = record
    return dict(sorted(found.items()))


def peaks(name: str) -> Decide:
    """Speed over fixed budgets has its maximum strictly inside their range, in every domain."""

    def decide(reports: Reports) -> Finding:
        one, verdicts, parts = _sweep(reports, name), [], []
        for domain in _domains(one):
            fixed = _fixed(one, domain)
            best = max(fixed, key=lambda rows: fixed[rows]["speedup"])
            last = fixed[max(fixed)]
            inside = min(fixed) < best < max(fixed)
            clear = fixed[best]["speedup_ci"][0] > last["speedup_ci"][1]
            verdicts.append(CONFIRMED if inside and clear else UNDECIDED if inside else REFUTED)
            parts.append(
                f"{domain}: best {best} rows {fixed[best]['speedup']:.2f}, "
                f"{max(fixed)} rows {last['speedup']:.2f}"
            )
        return Finding(combine(verdicts), "; ".join(parts))

    return decide


def _domains(one: dict[str, Any]) -> list[str]:
    found = dict.fromkeys(record["domain"] for record in one["results"])
    return [domain for domain in found if domain != "all"]


def peak_moves(name: str) -> Decide:
    """The best fixed budget is not the same in every domain, beyond the noise of its neighbours."""

    def decide(reports: Reports) -> Finding:
        one = _sweep(reports, name)
        tables = {domain: _fixed(one, domain) for domain in _domains(one)}
        best = {d: max(t, key=lambda rows, t=t: t[rows]["speedup"]) for d, t in tables.items()}
        shown = ", ".join(f"{domain} {rows}" for domain, rows in best.items())
        if len(set(best.values())) == 1:
            return Finding(REFUTED, f"best rows: {shown}")
        # A budget that no domain tells apart from its own best would suit all.
        suits = [
            rows
            for rows in next(iter(tables.values()))
            if all(
                t[rows]["speedup_ci"][1] >= t[best[d]]["speedup_ci"][0] for d, t in tables.items()
            )
        ]
        verdict = UNDECIDED if suits else CONFIRMED
        return Finding(verdict, f"best rows: {shown}; as good everywhere: {suits or 'none'}")

    return decide


def tracks(name: str, rule: str, least: float) -> Decide:
    """A rule reaches a share of the best fixed budget of each domain."""

    def decide(reports: Reports) -> Finding:
        found = [
            _figure(one["policy"], one["ratio"], one["ratio_ci"])
            for one in _sweep(reports, name)["hindsight"]
            if one["domain"] == "mean" and one["policy"].endswith(f"/{rule}")
        ]
        return find(found, lambda figure: above(figure, least))

    return decide


def faster_than_largest(name: str, rule: str) -> Decide:
    """A rule's mean speed is above that of the largest fixed budget, which it may use itself."""

    def decide(reports: Reports) -> Finding:
        single = _single(reports, name, rule)
        fixed = [method for method in single["margins"] if "@" in method]
        largest = max(fixed, key=lambda method: int(method.partition("@")[2]))
        value, *bounds = single["margins"][largest]
        return find([_figure(f"{single['policy']} / {largest}", value, bounds)], above)

    return decide


def rule_beats(name: str, one: str, other: str, least: float = 0.97) -> Decide:
    """A rule reaches a share of the speed of another one; bounds are of both over plain decoding."""

    def decide(reports: Reports) -> Finding:
        a, b = (_single(reports, name, rule)["margins"]["ar"] for rule in (one, other))
        figure = Figure(f"{one} / {other}", a[0] / b[0], (a[1] / b[2], a[2] / b[1]))
        return find([figure], lambda f: above(f, least))

    return decide


def _single(reports: Reports, name: str, rule: str) -> dict[str, Any]:
    """Return the record that compares a rule with every single budget."""
    return next(
        one
        for one in _sweep(reports, name)["hindsight"]
        if one["domain"] == "single" and one["policy"].endswith(f"/{rule}")
    )


def correlates(name: str, kind: str, least: float) -> Decide:
    """Expected and committed tokens a round correlate: `pearson` or `spearman`."""

    def decide(reports: Reports) -> Finding:
        one = next(
            one
            for one in _sweep(reports, name)["surrogate"]
            if (one["domain"], one["estimate"]) == ("all", "raw") and one["rounds"]
        )
        figure = _figure(kind, one[kind], one[f"{kind}_ci"])
        return find([figure], lambda f: above(f, least))

    return decide


def beats_beam(name: str, key: str = "ratio") -> Decide:
    """Best-first trees commit more tokens than beams of as many rows, above 4 rows: a round, or a
    second for the key `speed_ratio`.
    """

    def decide(reports: Reports) -> Finding:
        found = [
            _figure(one["method"].partition("@")[2] + " rows", one[key], one[f"{key}_ci"])
            for one in _sweep(reports, name)["best_first_over_beam"]
            if one["domain"] == "all" and int(one["method"].partition("@")[2]) > 4
        ]
        return find(found, above)

    return decide


def drafting_is_flat(name: str) -> Decide:
    """Drafting takes as long whatever is verified, and verification more with more rows."""

    def decide(reports: Reports) -> Finding:
        fixed = _fixed(_sweep(reports, name), "all")
        rows = list(fixed)
        grown = Figure(f"a round of {rows[-1]} rows over one of {rows[0]}", 0.0)
        grown = grown._replace(
            value=fixed[rows[-1]]["ms_per_round"] / fixed[rows[0]]["ms_per_round"]
        )
        draft = next(iter(_sweep(reports, name)["tables"].values()))["draft"][0]
        shown = f"drafting {1e3 * draft:.2g} ms at every budget; {grown}"
        return find([grown], lambda f: above(f, 1.1))._replace(ours=shown)

    return decide


def saturates(name: str) -> Decide:
    """The last doubling of the budget adds less than half of the tokens of the first one."""

    def decide(reports: Reports) -> Finding:
        fixed = _fixed(_sweep(reports, name), "all")
        rows = list(fixed)
        lengths = [fixed[n]["mean_acceptance_length"] for n in rows]
        first, last = lengths[1] - lengths[0], lengths[-1] - lengths[-2]
        figure = Figure("gain of the last doubling over the first", last / first)
        shown = ", ".join(f"{n}: {x:.2f}" for n, x in zip(rows, lengths, strict=True))
        return find([figure], lambda f: below(f, 0.5))._replace(ours=f"{shown}; {figure}")

    return decide


def rows_add_little(table: str, method: str, rows: int, most: float) -> Decide:
    """Beyond some rows, twice as many add less than a share `most` to a method's tokens a round."""

    def decide(reports: Reports) -> Finding:
        answers = Answers(reports[table])
        beyond = [n for n in measured_rows(method)(answers) if n >= rows]
        if len(beyond) < 2:
            return Finding(UNDECIDED, f"measured up to {max(beyond)} rows; --scale full goes on")
        ratios = [
            answers.acceptance(f"{method}@{more}", f"{method}@{less}")
            for less, more in zip(beyond, beyond[1:], strict=False)
        ]
        return find(ratios, lambda figure: below(figure, 1 + most))

    return decide


def predicts(name: str, rule: str, most: float) -> Decide:
    """A rule's predicted times have a small median error."""

    def decide(reports: Reports) -> Finding:
        error = next(
            one["error"]
            for one in _sweep(reports, name)["prediction"]
            if one["domain"] == "all" and one["method"].endswith(f"/{rule}")
        )
        return find([Figure("median error of predicted times", error)], lambda f: below(f, most))

    return decide


def running_mean_is_fragile(name: str, running: str, static: str) -> Decide:
    """A running correction of the bare roofline is slower than calibrated costs."""
    return rule_beats(name, static, running, 1.0)
