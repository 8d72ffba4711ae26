"""Make controls of a trained LTD policy, for `python -m benchmarks policies`.

    python -m benchmarks ltd-controls --record train.npz --times times.json \\
      --policy runs/ltd/policy --out policies/controls

The control `random` draws the policy's actions independently, each as often as the policy takes it;
a gain over it comes from choosing the right moment. The control `constant` always takes the
policy's most frequent action; a gain over it comes from varying the action at all. Actions are
counted in the policy's rounds on its training texts. `size` and `depth` are its two networks, each
without the other, whose own time is the paper's table 9. `static` is the best pair of depth and rows on
these texts, found by grid search.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import numpy as np

from jaxspec.costs.files import load_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.policies.learned.ltd import make_ltd
from jaxspec.policies.protocol import Policy
from jaxspec.policies.rules.random_actions import make_random
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.store import load_about, load_policy, save_policy
from training.replay.records import Record, load_record, split_records
from training.rl import replay


@dataclasses.dataclass
class ControlOptions:
    """Options of the controls.

    Attributes:
      record: the record that the policy was trained on; its training prompts are used.
      times: the round times used in training.
      policy: folder of the LTD policy.
      out: folder to write the controls to.
      seed: of the control `random`.
    """

    record: Path
    times: Path
    policy: Path
    out: Path
    seed: int = 0


class Controls(NamedTuple):
    """How often a policy takes each action.

    Attributes:
      steps: {draft steps: rounds}.
      sizes: {size index: rounds}.
      commonest: the most frequent pair (steps, size index).
    """

    steps: dict[int, int]
    sizes: dict[int, int]
    commonest: tuple[int, int]

    def drawn(self, count: int, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
        """Draw (steps, size index) independently of each other: int [count] each."""
        rng = np.random.default_rng(seed)
        return tuple(_draw(rng, frequencies, count) for frequencies in (self.steps, self.sizes))


def layers_of(policy: Policy) -> dict:
    """Return the networks that an LTD policy has, by name: `depth`, `size` or both."""
    named = {"depth": policy.controls.depth, "size": policy.controls.size}
    return {kind: layers for kind, layers in named.items() if layers is not None}


def make_controls(
    record: Record, times: RoundCosts, policy: Policy, static: tuple[int, int]
) -> Controls:
    """Count the actions of an LTD policy in its rounds on the texts of `record`.

    `static`, a pair (steps, size index), decides what the policy does not decide.
    """
    seconds = record.round_seconds(times)
    walk = replay.walk(
        record, seconds, *replay.decisions(record, layers_of(policy), policy.config, static)
    )
    actions = list(zip(walk.steps.tolist(), walk.sizes.tolist(), strict=True))
    steps, sizes = (dict(sorted(Counter(x).items())) for x in zip(*actions, strict=True))
    return Controls(steps, sizes, Counter(actions).most_common(1)[0][0])


def policies_of(
    controls: Controls,
    record: Record,
    widths: tuple[int, ...],
    static: tuple[int, int],
    seed: int = 0,
) -> dict[str, Policy]:
    """Make the policies `random`, `constant` and `static`.

    For trees that do not grow in steps they decide the rows only.

    Args:
      controls: how often the trained policy takes each action.
      record: the record of the rounds.
      widths: compiled row counts.
      static: (steps, size index) of the best constant.
      seed: of `random`.
    """
    pool = record.header["sees"] == "pool"

    def constant(pair):
        return make_static(pair[0] if pool else None, record.sizes[pair[1]], widths)

    rows = {record.sizes[index]: rounds for index, rounds in controls.sizes.items()}
    return {
        "random": make_random(controls.steps if pool else None, rows, widths, seed),
        "constant": constant(controls.commonest),
        "static": constant(static),
    }


def halves_of(policy: Policy) -> dict[str, Policy]:
    """Return the policies `size` and `depth`, each with one of two networks; {} if there is one.

    In `python -m benchmarks policies` they show what either network takes (table 9).
    """
    layers, config = layers_of(policy), policy.config
    if len(layers) < 2:
        return {}
    only = {"size": {"depths": ()}, "depth": {"sizes": ()}}
    return {
        name: make_ltd(dataclasses.replace(config, **without), **{name: layers[name]})
        for name, without in only.items()
    }


def main(options: ControlOptions) -> None:
    """Count the policy's actions, print them, and write the controls."""
    record = load_record(options.record)
    times = load_costs(options.times)
    policy = load_policy(options.policy)
    training = split_records(record)[0]
    static = replay.best_static(training, training.round_seconds(times))
    controls = make_controls(training, times, policy, static)
    about = load_about(options.policy)
    made = policies_of(controls, record, policy.config.widths, static, options.seed)
    for name, control in (made | halves_of(policy)).items():
        save_policy(control, options.out / name, about)
    rounds, (steps, size) = sum(controls.steps.values()), controls.commonest
    print("steps: " + _shares(controls.steps, rounds))
    print(
        "rows:  "
        + _shares({record.sizes[index]: count for index, count in controls.sizes.items()}, rounds)
    )
    print(f"most frequent: {steps} steps and {record.sizes[size]} rows; written to {options.out}")


def _draw(rng: np.random.Generator, frequencies: dict[int, int], count: int) -> np.ndarray:
    weights = np.array(list(frequencies.values()), float)
    return rng.choice(list(frequencies), count, p=weights / weights.sum())


def _shares(frequencies: dict[int, int], rounds: int) -> str:
    return "  ".join(f"{action}: {count / rounds:.1%}" for action, count in frequencies.items())
