"""The policies that LTD must beat and that know nothing of the round at hand, made from the record that it was trained on.

    python -m training.rl.controls --record train.npz --times times.json --policy policies/ltd --out policies

Writes three folders: `static`, the constant (steps, rows) with the most tokens per second (grid search); `modal`, the commonest
pair of LTD itself as a constant; and `random`, which draws steps and rows as often as LTD takes them, whatever the round is.
"""

from __future__ import annotations

import collections
import dataclasses
from pathlib import Path

import numpy as np

from jaxspec.policies.protocol import Policy
from jaxspec.policies.random_size import make_random
from jaxspec.policies.round_times import RoundTimes, load_times
from jaxspec.policies.static_size import make_static
from jaxspec.policies.store import load_policy, save_policy
from training.command import one_line_errors
from training.rl import replay
from training.rl.evaluate import walks_of
from training.rl.records import Record, load_record, split


@dataclasses.dataclass
class ControlsOptions:
    """Options.

    Attributes:
      record: that LTD was trained on; its training prompts are used. times: as of training.
      policy: folder of an LTD policy with both networks. out: folder for the controls' folders.
    """

    record: Path
    times: Path
    policy: Path
    out: Path


def controls_of(record: Record, times: RoundTimes, policy: Policy) -> dict[str, Policy]:
    """The controls by name; `record` is of training prompts.

    Raises:
      ValueError: a policy with one network, or of another record.
    """
    seconds = times.seconds(record.context, record.steps, record.sizes)
    static = replay.best_static(record, seconds)
    walk = walks_of(record, times, policy, static).get("both policies")
    if walk is None:
        raise ValueError("the policy decides about depth or rows alone: give one that decides about both")
    rows = np.asarray(record.sizes)[walk.sizes]
    pairs = collections.Counter(zip(walk.steps.tolist(), rows.tolist(), strict=True))
    steps, sizes = (collections.Counter(values.tolist()) for values in (walk.steps, rows))
    widths = times.widths
    return {
        "static": make_static(static[0], record.sizes[static[1]], widths),
        "modal": make_static(*pairs.most_common(1)[0][0], widths),
        "random": make_random(steps, sizes, widths),
    }


def main(options: ControlsOptions) -> None:
    """Make the controls and write them."""
    record, times = split(load_record(options.record))[0], load_times(options.times)
    about = {name: record.header[name] for name in ("model", "drafter", "builder")} | {"device": times.about["device"]}
    for name, policy in controls_of(record, times, load_policy(options.policy)).items():
        save_policy(policy, options.out / name, about)
        print(f"{options.out / name}: {policy.settings} {policy.controls}")


if __name__ == "__main__":
    import tyro

    with one_line_errors():
        main(tyro.cli(ControlsOptions))
