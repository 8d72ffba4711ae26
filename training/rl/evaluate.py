"""What a trained policy is worth on a record of other prompts, by modelled time: the first of the tiers of evaluation.

    python -m training.rl.evaluate --record test.npz --times times.json --policy policies/ltd --tuned-on train.npz

Prints tokens per second, tokens per round, mean draft steps and rows of the policy, of each of its halves beside the best
constant, of the best constant itself (chosen on `tuned_on`), and of the fastest way there is. Intervals are of the ratio to the
best constant, by paired bootstrap over prompts.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np

from jaxspec.policies.round_times import RoundTimes, load_times
from jaxspec.policies.store import load_policy
from training.command import one_line_errors
from training.rl import replay
from training.rl.records import Record, load_record, split


@dataclasses.dataclass
class EvaluateOptions:
    """Options of the evaluation.

    Attributes:
      record: of prompts that nothing was chosen on. times: as of training.
      policy: folder of an LTD policy.
      tuned_on: the record that the policy was trained on; the best constant is that of its training prompts.
      out: JSON file to write; None: only print.
    """

    record: Path
    times: Path
    policy: Path
    tuned_on: Path
    out: Path | None = None


def walks_of(record: Record, times: RoundTimes, policy, static: tuple[int, int]) -> dict[str, replay.Walk]:
    """Texts of `record` under the policy, its halves, the best constant (steps, size index) and the oracle."""
    settings, weights = policy.settings, policy.controls
    if settings.sizes and settings.sizes != record.sizes or settings.steps != record.steps:
        raise ValueError(
            f"the policy chooses among {list(settings.sizes)} rows and {settings.steps} steps, the record has "
            f"{list(record.sizes)} and {record.steps}: record with the policy's"
        )
    seconds = times.seconds(record.context, record.steps, record.sizes)
    at, (steps, size) = np.arange(len(record.context)), static
    plan = {"static": static, "oracle": replay.oracle(record, seconds)}
    depths = None if weights.depth is None else replay.choose_depths(record, weights.depth, settings)
    sizes = None if weights.size is None else replay.choose_sizes(record, weights.size, settings)
    if depths is not None:
        plan["depth policy alone"] = depths, size
    if sizes is not None:
        plan["size policy alone"] = steps, sizes[at, steps]
    if depths is not None and sizes is not None:
        plan["both policies"] = depths, sizes[at, depths]
    return {name: replay.walk(record, seconds, *chosen) for name, chosen in plan.items()}


def interval(walk: replay.Walk, other: replay.Walk, samples: int = 2000) -> tuple[float, float]:
    """95 % of the ratio of total speeds, prompts drawn with replacement, the same for both."""
    drawn = np.random.default_rng(0).integers(0, len(walk.tokens), (samples, len(walk.tokens)))
    speeds = [one.tokens[drawn].sum(1) / one.seconds[drawn].sum(1) for one in (walk, other)]
    return tuple(np.quantile(speeds[0] / speeds[1], [0.025, 0.975]).tolist())


def evaluate(options: EvaluateOptions) -> dict[str, dict[str, dict]]:
    """Figures by domain, `all` among them, and way."""
    record, times, policy = load_record(options.record), load_times(options.times), load_policy(options.policy)
    tuned = split(load_record(options.tuned_on))[0]
    static = replay.best_static(tuned, times.seconds(tuned.context, tuned.steps, tuned.sizes))
    parts = {name: record.domain(name) for name in dict.fromkeys(record.header["domains"])}
    results = {}
    for domain, part in (parts | {"all": record}).items():
        walks = walks_of(part, times, policy, static)
        results[domain] = {
            name: walk.figures(part) | {"over_static": list(interval(walk, walks["static"]))} for name, walk in walks.items()
        }
    return results


def main(options: EvaluateOptions) -> None:
    """Evaluate, print and write."""
    results = evaluate(options)
    for domain, ways in results.items():
        for name, figures in ways.items():
            low, high = figures["over_static"]
            print(
                f"{domain:>8} {name:>18}: {figures['tokens_per_second']:.1f} tokens/s ({low:.3f} to {high:.3f} of static), "
                f"{figures['acceptance_length']:.2f} a round, {figures['steps']:.1f} steps, {figures['rows']:.1f} rows"
            )
    if options.out:
        options.out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(EvaluateOptions))
