"""Write the page of claims from the results that are kept."""

from __future__ import annotations

import json
import textwrap
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from benchmarks.reproduce.claim import MIXED, NOT_RUN, REFUTED, VERDICTS, Claim
from benchmarks.reproduce.claims.registry import CLAIMS, PAPERS
from benchmarks.reproduce.measurements import MEASUREMENTS
from benchmarks.reproduce.runner import place_result
from jaxspec.io.files.atomic import write_text

# Models that have a column even before anything was run on them.
MODELS = ("mini", "smollm2-135m")
WIDTH = 99
# {model: {id: result}}.
Results = Mapping[str, Mapping[str, dict[str, Any]]]
_HEAD = """# The papers' claims, tried here

`jaxspec reproduce --page` wrote this page from the results of `jaxspec reproduce`, which are kept
in `benchmarks/results/claims`. `jaxspec reproduce ID --model MODEL` runs an entry again; an entry
runs commands of this project, whose reports a rule judges. Nothing here is a verdict on a paper:
models, devices and trainings are far smaller.

* A claim is **confirmed** or **refuted** if the 95 % interval of the figure that decides lies on
  one side of its bound, **mixed** if several figures disagree, and **not decidable here** if the
  interval holds the bound. Intervals are over prompts, and over three seeds where something was
  trained.
* Scores are the drafters' own log-probabilities (`--score-temperature 1`), and drafts know nothing
  of the target's noise (`--coupled off`), as published.
* `a / b` is the ratio of two methods, named as for `jaxspec bench --methods`.
"""


def read_results(folder: Path) -> dict[str, dict[str, dict[str, Any]]]:
    """Read the results of every model in a folder."""
    found: dict[str, dict[str, dict[str, Any]]] = {}
    others = sorted(path.name for path in folder.glob("*") if path.is_dir())
    for model in dict.fromkeys((*MODELS, *others)):
        paths = {name: place_result(name, model, folder) for name in CLAIMS}
        found[model] = {n: json.loads(p.read_text()) for n, p in paths.items() if p.is_file()}
    return found


def write_page(path: Path, folder: Path) -> Path:
    """Write the page from the results in a folder; return its path."""
    write_text(path, make_page(read_results(folder)))
    return path


def make_page(results: Results) -> str:
    """Make the page's text."""
    parts = [_HEAD, _count_verdicts(results)]
    for paper, title in PAPERS.items():
        claims = [one for one in CLAIMS.values() if one.id.startswith(f"{paper}/")]
        parts += [f"## {title}\n", *_tabulate(claims, results), ""]
        parts += _explain(claims, results)
    parts += ["## Not run\n", *_list_not_run(results), ""]
    parts += ["## What is measured\n", *_list_measurements(results)]
    return "\n".join(parts).rstrip() + "\n"


def _count_verdicts(results: Results) -> str:
    rows = ["| model | " + " | ".join((*VERDICTS, NOT_RUN)) + " |", "| --- " * 6 + "|"]
    for model, own in results.items():
        counts = Counter(one["verdict"] for one in own.values())
        counts[NOT_RUN] += len(CLAIMS) - len(own)
        cells = " | ".join(str(counts[verdict]) for verdict in (*VERDICTS, NOT_RUN))
        rows.append(f"| {model} | {cells} |")
    return "\n".join(rows) + "\n"


def _tabulate(claims: list[Claim], results: Results) -> list[str]:
    """Make the table of a paper: a row for each claim, a column for each model."""
    rows = [f"| claim | the paper | {' | '.join(results)} |", "| --- " * (2 + len(results)) + "|"]
    for claim in claims:
        cells = [_describe(own.get(claim.id)) for own in results.values()]
        what = f"`{claim.id}`: {claim.says}"
        rows.append(f"| {what} | {claim.paper} | {' | '.join(cells)} |")
    return rows


def _describe(result: dict[str, Any] | None) -> str:
    """Make a cell of the table."""
    if result is None or result["verdict"] == NOT_RUN:
        return NOT_RUN
    return f"**{result['verdict']}**: {result['ours'].replace('|', '/')}"


def _explain(claims: list[Claim], results: Results) -> list[str]:
    """Say of every refutation whether the scale can explain it."""
    lines = []
    for claim in claims:
        where = [
            model
            for model, own in results.items()
            if own.get(claim.id, {}).get("verdict") in (REFUTED, MIXED)
        ]
        if where:
            lines.append(_wrap(f"* `{claim.id}` ({', '.join(where)}): {claim.scale}"))
    return ["Can the scale explain what was not confirmed?\n", *lines, ""] if lines else []


def _list_not_run(results: Results) -> list[str]:
    """List the reasons why entries were not run, each with the models and claims."""
    reasons: dict[str, dict[str, list[str]]] = {}
    for model, own in results.items():
        for claim in CLAIMS.values():
            result = own.get(claim.id)
            if result is None or result["verdict"] == NOT_RUN:
                reason = claim.waits or (result or {"ours": "its turn has not come"})["ours"]
                reasons.setdefault(reason, {}).setdefault(claim.id, []).append(model)
    lines = [
        f"* {reason}: " + ", ".join(f"`{name}` ({', '.join(at)})" for name, at in own.items())
        for reason, own in reasons.items()
    ]
    return [_wrap(line) for line in lines] or ["Every entry was run."]


def _wrap(line: str) -> str:
    """Break a list's item into lines of the pages' width."""
    return textwrap.fill(
        line, WIDTH, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False
    )


def _list_measurements(results: Results) -> list[str]:
    """Make a table of measurements: what each is, and when it was made with which settings."""
    rows = ["| measurement | what | made |", "| --- | --- | --- |"]
    for name, one in MEASUREMENTS.items():
        made = []
        for model, own in results.items():
            for result in own.values():
                if result["verdict"] != NOT_RUN and name in result["measured"]:
                    files = result["setting"]
                    device = f", {result['device']}" if result["device"] else ""
                    trained = f", {files['corpus']}" if one.trains else ""
                    made.append(
                        f"{model}, {files['scale']}, {files['prompts']}{trained}, "
                        f"{result['date']}{device}"
                    )
                    break
        rows.append(f"| `{name}` | {one.summary} | {'; '.join(made) or '–'} |")
    return rows
