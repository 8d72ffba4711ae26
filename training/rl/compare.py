"""Trained policies beside each other on a record of other prompts, by modelled time, with intervals
of their ratios.

    python -m training.rl.compare --record test.npz --times times.json --tuned-on train.npz \\
        --ways turns=runs/a/policy,runs/b/policy alone=runs/a/1-depth/policy,runs/b/1-depth/policy
        --out compare.json

A way is `name=folder` or `name:half=folder`, the half being `size` or `depth` of an LTD policy; the
best constant decides the other. Several folders are trainings from several seeds: their texts count
together. Regressions of `training.policies.expected` are taken as well. Intervals are of ratios of
total speeds, by paired bootstrap over the prompts of each domain; they say how sure the prompts
make one, not what another training would give, which `each` is for.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxspec.costs.files import load_costs
from jaxspec.policies.learned.regression import Regression
from jaxspec.policies.store import load_about, load_policy
from training.command import one_line_errors
from training.policies.expected import choose_expected_sizes
from training.replay.records import Record, load_record, split_records
from training.rl import replay
from training.rl.controls import layers_of
from training.rl.evaluate import check_record, over


@dataclasses.dataclass
class CompareOptions:
    """Options of the comparison.

    Attributes:
      record: of prompts that nothing was chosen on. times: as of training.
      tuned_on: the record that the policies were trained on; the best constant is that of its
        training prompts.
      ways: what is compared, see above; the others are also compared with the first.
      out: JSON file to write; None: only print.
    """

    record: Path
    times: Path
    tuned_on: Path
    ways: tuple[str, ...]
    out: Path | None = None


class Way(NamedTuple):
    """A name, the half that decides ("" for all there is), and a folder for each training."""

    name: str
    half: str
    folders: tuple[Path, ...]


def parse_way(text: str) -> Way:
    """A way as the command line gives it.

    Raises:
      ValueError: it is not of that form.
    """
    label, equals, folders = text.rpartition("=")
    name, _, half = label.partition(":")
    if not equals or not name or not folders or half not in ("", "size", "depth"):
        raise ValueError(
            f"{text!r} is no way: give name=folder or name:size=folder, with commas between several folders"
        )
    return Way(label, half, tuple(map(Path, folders.split(","))))


def decided(record: Record, seconds: np.ndarray, folder: Path, half: str, static: tuple[int, int]):
    """(steps, size index), int [N] each or a number, of the policy in `folder`.

    Raises:
      ValueError: the policy was trained for other rounds, or has no such half.
    """
    policy = load_policy(folder)
    if isinstance(policy.controls, Regression):
        steps = load_about(folder)["steps"]
        return steps, choose_expected_sizes(record, policy.controls.layers, seconds, steps)
    check_record(policy, record)
    layers = layers_of(policy)
    if half and half not in layers:
        raise ValueError(f"the policy in {folder} does not decide about {half}: leave :{half} out")
    return replay.decisions(record, {half: layers[half]} if half else layers, policy.config, static)


def pooled(walks: list[replay.Walk]) -> replay.Walk:
    """Walks over the same prompts as one: a prompt's texts count together."""
    sums = (
        np.sum([getattr(walk, name) for walk in walks], axis=0)
        for name in ("tokens", "seconds", "rounds")
    )
    return replay.Walk(
        *sums,
        *(np.concatenate([getattr(walk, name) for walk in walks]) for name in ("steps", "sizes")),
    )


def compare(options: CompareOptions) -> dict[str, dict]:
    """Figures by way, `static` and `oracle` first: of all prompts, and the ratio to the best
    constant in each domain.

    Raises:
      ValueError, FileNotFoundError: as `parse_way` and `decided`; no file.
    """
    record, times, tuned = (
        load_record(options.record),
        load_costs(options.times),
        split_records(load_record(options.tuned_on))[0],
    )
    static = replay.best_static(tuned, tuned.round_seconds(times))
    seconds = record.round_seconds(times)
    walks = {"static": [replay.walk(record, seconds, *static)]}
    walks["oracle"] = [replay.walk(record, seconds, *replay.oracle(record, seconds))]
    for way in map(parse_way, options.ways):
        each = (decided(record, seconds, folder, way.half, static) for folder in way.folders)
        walks[way.name] = [replay.walk(record, seconds, *chosen) for chosen in each]
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


def _ratio(walk: replay.Walk, other: replay.Walk, kept=slice(None)) -> float:
    """Of total speeds over the kept prompts; the walks may be of different numbers of trainings."""
    speeds = (each.tokens[kept].sum() / each.seconds[kept].sum() for each in (walk, other))
    return float(next(speeds) / next(speeds))


def main(options: CompareOptions) -> None:
    """Compare, print and write."""
    results = compare(options)
    for name, found in results.items():
        compared = "  ".join(_said(found[key]) for key in ("over_static", "over_first"))
        each = " ".join(f"{ratio:.3f}" for ratio in found["each"])
        domains = " ".join(f"{domain} {ratio:.3f}" for domain, ratio in found["domains"].items())
        shape = f"{found['acceptance_length']:.2f} a round, {found['steps']:.1f} steps, {found['rows']:.1f} rows"
        print(f"{name:>20}: {compared}; {shape}; {domains}; each {each}")
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


def _said(found) -> str:
    ratio, bounds = found
    return f"{ratio:.3f}" if bounds is None else "{:.3f} [{:.3f}, {:.3f}]".format(ratio, *bounds)


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(CompareOptions))
