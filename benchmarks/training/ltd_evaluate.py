"""Evaluate a trained policy on a record of held-out prompts, by modelled time.

    python -m benchmarks ltd-evaluate --record test.npz --times times.json --policy policies/ltd \\
      --tuned-on train.npz

This is the first tier of evaluation. It prints tokens per second, tokens per round, mean draft
steps and mean rows of: the policy; each of its halves with the best constant for the other half;
its controls (`benchmarks.training.ltd_controls`); the best constant; and the oracle, the fastest
possible sequence of rounds. The controls and the best constant come from `tuned_on`. Intervals are
of the ratio to the best constant, by paired bootstrap over prompts.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

from benchmarks.training.ltd_controls import Controls, layers_of, make_controls
from jaxspec.bench.report.table import Column, Table, fixed, interval
from jaxspec.core.bootstrap import bound_ratio, resample_prompts
from jaxspec.costs.files import load_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.files.atomic import write_text
from jaxspec.policies.store import load_policy
from training.replay.records import Record, load_record, split_records
from training.rl import replay


@dataclasses.dataclass
class EvaluateOptions:
    """Options of the evaluation.

    Attributes:
      record: record of prompts that were not used for training or tuning.
      times: the round times used in training.
      policy: folder of an LTD policy.
      tuned_on: the record that the policy was trained on; the best constant is chosen on its
        training prompts.
      out: JSON file to write; None only prints.
    """

    record: Path
    times: Path
    policy: Path
    tuned_on: Path
    out: Path | None = None


def walks_of(
    record: Record, times: RoundCosts, policy, static: tuple[int, int], controls: Controls
) -> dict[str, replay.Walk]:
    """Generate the texts of `record` with the policy and everything that it is compared with.

    These are its halves, its controls, the best constant (steps, size index) and the oracle.
    """
    config = policy.config
    check_record(policy, record)
    seconds = record.round_seconds(times)
    plan = {"static": static, "oracle": replay.oracle(record, seconds)}
    plan |= {
        "random control": controls.drawn(len(record.context)),
        "constant control": controls.commonest,
    }
    layers = layers_of(policy)
    for kind in layers:
        plan[f"{kind} policy alone"] = replay.decisions(
            record, {kind: layers[kind]}, config, static
        )
    if len(layers) > 1:
        plan["both policies"] = replay.decisions(record, layers, config, static)
    return {name: replay.walk(record, seconds, *chosen) for name, chosen in plan.items()}


def check_record(policy, record: Record) -> None:
    """Raise a ValueError if the LTD policy's steps or sizes differ from the record's."""
    config = policy.config
    if config.sizes and config.sizes != record.sizes or config.steps != record.steps:
        raise ValueError(
            f"the policy has sizes {list(config.sizes)} and {config.steps} steps, the record "
            f"{list(record.sizes)} and {record.steps}: record with the policy's --sizes and --steps"
        )


def over(record: Record, walk: replay.Walk, other: replay.Walk) -> list[float] | None:
    """Compute the 95 % interval of the ratio of total speeds of `walk` and `other`.

    The interval comes from a paired bootstrap over the prompts of each domain; it is None if every
    domain has only one prompt.
    """
    drawn = resample_prompts(
        [record.header["domains"][number] for number in record.prompt[record.first()]]
    )
    return bound_ratio(drawn, (walk.tokens, other.seconds), (walk.seconds, other.tokens))


def evaluate(options: EvaluateOptions) -> dict[str, dict[str, dict]]:
    """Compute figures by domain (with `all` for the whole record) and by way."""
    record = load_record(options.record)
    times = load_costs(options.times)
    policy = load_policy(options.policy)
    tuned = split_records(load_record(options.tuned_on))[0]
    static = replay.best_static(tuned, tuned.round_seconds(times))
    controls = make_controls(tuned, times, policy, static)
    parts = {name: record.domain(name) for name in dict.fromkeys(record.header["domains"])}
    results = {}
    for domain, part in (parts | {"all": record}).items():
        walks = walks_of(part, times, policy, static, controls)
        results[domain] = {
            name: walk.figures(part) | {"over_static": over(part, walk, walks["static"])}
            for name, walk in walks.items()
        }
    return results


def main(options: EvaluateOptions) -> None:
    """Evaluate the policy, print its figures and write them."""
    results = evaluate(options)
    columns = [
        Column("domain"),
        Column("policy"),
        Column("tokens/s", fixed(1)),
        Column("over static", interval(3)),
        Column("tokens/round", fixed(2)),
        Column("steps", fixed(1)),
        Column("rows", fixed(1)),
    ]
    keys = ("tokens_per_second", "over_static", "acceptance_length", "steps", "rows")
    rows = [
        [domain, name, *(figures[key] for key in keys)]
        for domain, ways in results.items()
        for name, figures in ways.items()
    ]
    print(Table(columns, rows).to_text())
    if options.out:
        write_text(options.out, json.dumps(results, indent=1) + "\n")
