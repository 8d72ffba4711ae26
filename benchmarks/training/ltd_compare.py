"""Compare trained policies on a record of held-out prompts, by modelled time, with intervals.

    python -m benchmarks ltd-compare --record test.npz --times times.json \\
      --tuned-on train.npz \\
      --ways turns=runs/a/policy,runs/b/policy alone=runs/a/1-depth/policy,runs/b/1-depth/policy \\
      --out compare.json

A way is `name=folder` or `name:half=folder`. The half is `size` or `depth`: that network of an LTD
policy decides, and the best constant decides the rest. Several folders are trainings with different
seeds; their texts are added up. Regressions of `training.policies.expected` are accepted too.
Intervals are of ratios of total speeds, by paired bootstrap over the prompts of each domain. They
show the uncertainty from the prompts, not from training; `each` has the ratio of every training.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.training.ltd_controls import layers_of
from benchmarks.training.ltd_evaluate import check_record, over
from jaxspec.bench.report.table import Column, Table, fixed, with_interval
from jaxspec.costs.files import load_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.files.atomic import write_text
from jaxspec.policies.learned.networks import Layer
from jaxspec.policies.learned.regression import Regression, predict_committed
from jaxspec.policies.store import load_about, load_policy
from training.policies.expected import make_regression_examples
from training.replay.records import Record, load_record, split_records
from training.rl import replay

# Domains up to which all are printed; the JSON has all.
FEW_DOMAINS = 8


@dataclasses.dataclass
class CompareOptions:
    """Options of the comparison.

    Attributes:
      record: record of prompts that were not used for training or tuning.
      times: the round times used in training.
      tuned_on: the record that the policies were trained on; the best constant is chosen on its
        training prompts.
      ways: ways to compare, as name=folder or name:half=folder; all are also compared with the
        first.
      out: JSON file to write; None only prints.
    """

    record: Path
    times: Path
    tuned_on: Path
    ways: tuple[str, ...]
    out: Path | None = None


class Way(NamedTuple):
    """One way: its name, the half that decides ("" for all halves), and a folder per training."""

    name: str
    half: str
    folders: tuple[Path, ...]


def parse_way(text: str) -> Way:
    """Parse a way from the command line.

    Raises:
      ValueError: the text has another form.
    """
    label, equals, folders = text.rpartition("=")
    name, _, half = label.partition(":")
    if not equals or not name or not folders or half not in ("", "size", "depth"):
        raise ValueError(
            f"{text!r} is no way: give name=folder or name:size=folder, "
            "with commas between several folders"
        )
    return Way(label, half, tuple(map(Path, folders.split(","))))


def decided(record: Record, seconds: np.ndarray, folder: Path, half: str, static: tuple[int, int]):
    """Return the decisions of the policy in `folder` at every position.

    Args:
      record: recorded rounds.
      seconds: float32 [N, S, V], times of the rounds.
      folder: of the policy.
      half: `size`, `depth` or "", the networks that decide.
      static: (steps, size index) that decides the rest.

    Returns:
      (steps, size index), each int [N] or a number.

    Raises:
      ValueError: the policy was trained for other rounds, or does not have this half.
    """
    policy = load_policy(folder)
    if isinstance(policy.controls, Regression):
        steps = load_about(folder)["steps"]
        return steps, choose_expected_sizes(record, policy.controls.layers, seconds, steps)
    check_record(policy, record)
    layers = layers_of(policy)
    if half and half not in layers:
        raise ValueError(f"the policy in {folder} does not decide the {half}: leave :{half} out")
    return replay.decisions(record, {half: layers[half]} if half else layers, policy.config, static)


def choose_expected_sizes(
    record: Record, layers: list[Layer], seconds: np.ndarray, steps: int
) -> np.ndarray:
    """Choose rows at every position as the regression's policy would: index of the size, int [N].

    Args:
      record: recorded rounds.
      layers: of the regression.
      seconds: [N, S, V], see `RoundCosts.seconds`.
      steps: draft steps of the rounds.
    """
    x, _ = make_regression_examples(record, steps)
    return np.asarray(predict_committed(layers, x) / seconds[:, steps]).argmax(-1)


def pooled(walks: list[replay.Walk]) -> replay.Walk:
    """Add up walks over the same prompts."""
    sums = (
        np.sum([getattr(walk, name) for walk in walks], axis=0)
        for name in ("tokens", "seconds", "rounds")
    )
    return replay.Walk(
        *sums,
        *(np.concatenate([getattr(walk, name) for walk in walks]) for name in ("steps", "sizes")),
    )


def compare(options: CompareOptions) -> dict[str, dict]:
    """Compute figures by way, `static` and `oracle` first.

    Each way has figures of all prompts, and the ratio to the best constant in each domain.

    Raises:
      ValueError: see `parse_way` and `decided`.
      FileNotFoundError: a file is missing.
    """
    record = load_record(options.record)
    walks = walk_ways(options, record, load_costs(options.times))
    totals = {name: pooled(each) for name, each in walks.items()}
    domains = np.array(
        [record.header["domains"][number] for number in record.prompt[record.first()]]
    )
    first = next((totals[parse_way(way).name] for way in options.ways), totals["static"])
    return {
        name: total.figures(record)
        | {
            "over_static": [_ratio(total, totals["static"]), over(record, total, totals["static"])],
            "over_first": [_ratio(total, first), over(record, total, first)],
            "each": [_ratio(walk, totals["static"]) for walk in walks[name]],
            "domains": {
                domain: _ratio(total, totals["static"], domains == domain)
                for domain in dict.fromkeys(domains.tolist())
            },
        }
        for name, total in totals.items()
    }


def walk_ways(
    options: CompareOptions, record: Record, times: RoundCosts
) -> dict[str, list[replay.Walk]]:
    """Generate the texts of a record with the best constant, the oracle and every way.

    Returns:
      {`static`, `oracle` or a way's name: a walk per training}.
    """
    tuned = split_records(load_record(options.tuned_on))[0]
    static = replay.best_static(tuned, tuned.round_seconds(times))
    seconds = record.round_seconds(times)
    walks = {"static": [replay.walk(record, seconds, *static)]}
    walks["oracle"] = [replay.walk(record, seconds, *replay.oracle(record, seconds))]
    for way in map(parse_way, options.ways):
        each = (decided(record, seconds, folder, way.half, static) for folder in way.folders)
        walks[way.name] = [replay.walk(record, seconds, *chosen) for chosen in each]
    return walks


def _ratio(walk: replay.Walk, other: replay.Walk, kept=slice(None)) -> float:
    """Compute the ratio of total speeds over the kept prompts.

    The two walks may add up different numbers of trainings.
    """
    speeds = (each.tokens[kept].sum() / each.seconds[kept].sum() for each in (walk, other))
    return float(next(speeds) / next(speeds))


def show_domains(ratios: dict[str, float]) -> str:
    """Show the ratio to the best constant in every domain; of many, such as MMLU's subjects, how
    many are above 1, the lowest and the highest.
    """
    if len(ratios) <= FEW_DOMAINS:
        return " ".join(f"{name} {ratio:.3f}" for name, ratio in ratios.items())
    faster = sum(ratio > 1 for ratio in ratios.values())
    low, high = (pick(ratios, key=ratios.__getitem__) for pick in (min, max))
    ends = f"{low} {ratios[low]:.3f} to {high} {ratios[high]:.3f}"
    return f"faster on {faster} of {len(ratios)}, {ends}"


def main(options: CompareOptions) -> None:
    """Compare the ways, print the figures and write them."""
    results = compare(options)
    columns = [
        Column("way"),
        Column("over static", with_interval(3)),
        Column("over the first", with_interval(3)),
        Column("tokens/round", fixed(2)),
        Column("steps", fixed(1)),
        Column("rows", fixed(1)),
        Column("domains", show_domains),
        Column("each", lambda found: " ".join(f"{ratio:.3f}" for ratio in found)),
    ]
    keys = ("over_static", "over_first", "acceptance_length", "steps", "rows", "domains", "each")
    rows = [[name, *(found[key] for key in keys)] for name, found in results.items()]
    print(Table(columns, rows).to_text())
    if options.out:
        write_text(options.out, json.dumps(results, indent=1) + "\n")
