"""Tune a rule's threshold and number of verified rows to a drafter and a device.

    python -m jaxspec.training.policies.tune svip --drafter eagle3 --prompts corpus.jsonl.gz \\
      --times times.json --out policies/svip
    python -m jaxspec.training.policies.tune disco --drafter eagle3 --head heads/disco \\
      --prompts corpus.jsonl.gz --times times.json --out policies/disco

The papers chose their thresholds for other drafters, and rules that decide how deep to draft always
verify all rows of a round. The search therefore tries every threshold with every constant number of
rows. It decodes validation prompts: those that `training.policies.classifiers` holds out with the
same `--prompts` and `--limit`. Threshold and rows are traced values, so a search compiles once. The
score is tokens per modelled second; the times of `training.rl.times` also define the rounds. The
best pair is saved. A learned rule takes its network from a saved policy, `--head`.

DDD may stop after every step here. Its authors check only after three of the steps, because in
their code each check stalls the device.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
import tyro
from tqdm import tqdm

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.params import Params
from jaxspec.costs.files import load_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.files.atomic import write_text
from jaxspec.policies.compose import compose
from jaxspec.policies.protocol import Policy
from jaxspec.policies.registry import tag_of
from jaxspec.policies.rules.ddd import make_ddd
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.rules.svip import make_svip
from jaxspec.policies.stopping import replace_threshold
from jaxspec.policies.store import load_policy, save_policy
from jaxspec.tuner.calibrate.by_rows import about
from jaxspec.tuner.calibrate.by_steps import STEP_COSTS

from ..data.splits import HELD_OUT, mark_held_out
from ..run.command import one_line_errors
from .options import PromptsToAnswer

# Thresholds range from one at which the rule always stops to one at which it hardly ever stops.
THRESHOLDS = {
    "ddd": (-3.0, -2.0, -1.5, -1.0, -0.7, -0.5, -0.3, -0.2, -0.1, -0.05),
    "svip": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1),
    "disco": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    "specdec_plus": (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
    "c2t": (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8),
}


@dataclasses.dataclass
class TuneOptions(PromptsToAnswer):
    """Options of the search.

    Attributes:
      rule: the rule to tune.
      times: JSON file of round times, written by `training.rl.times`.
      out: folder of the policy.
      head: folder of a saved policy; a learned rule takes its network.
      thresholds: to try; none takes `THRESHOLDS`. The rule's default is always tried too.
      rows: largest numbers of verified rows to try, the root included; 0 means all rows.
      temperature: of the answers.
    """

    rule: Annotated[Literal["ddd", "svip", "disco", "specdec_plus", "c2t"], tyro.conf.Positional]
    times: Path
    out: Path
    head: Path | None = None
    thresholds: tuple[float, ...] = ()
    rows: tuple[int, ...] = (4, 6, 8, 12, 0)
    temperature: float = 0.0


def rounds_of(times: RoundCosts) -> dict[str, Any]:
    """Return options of `jaxspec.decode` for the rounds that were timed.

    Raises:
      ValueError: the times do not describe their rounds.
    """
    told = times.about
    missing = [name for name in ("drafter", "builder", "width", "steps") if name not in told]
    if missing:
        raise ValueError(
            f"the round costs do not name the {missing[0]} of their rounds: "
            "measure them with `python -m jaxspec.training.rl.times`"
        )
    builder = f"{told['builder']}/w{told['width']}" if told["width"] else told["builder"]
    settings = {"drafter": told["drafter"], "builder": builder, "budget": times.widths[-1]}
    return settings | {"depth": told["steps"] + 1}


def make_tuned_rule(options: TuneOptions, steps: int, made_for: dict[str, Any]) -> Policy:
    """Make the rule with its default threshold.

    Args:
      options: of the search.
      steps: draft steps of the rounds after the root's.
      made_for: description of the present setting; a saved policy for another one warns.

    Raises:
      ValueError: a learned rule has no `head`, or `head` holds a policy of another rule.
      FileNotFoundError: `head` holds no policy.
    """
    if options.rule == "ddd":
        return make_ddd(checks=tuple(range(steps)), most=steps)
    if options.rule == "svip":
        return make_svip()
    if options.head is None:
        raise ValueError(
            f"{options.rule} has a network: give --head, a folder of "
            "jaxspec.training.policies.classifiers"
        )
    policy = load_policy(options.head, about=made_for)
    found = tag_of(type(policy.config)).replace("-", "_")
    if found != options.rule:
        raise ValueError(
            f"{options.head} holds a policy of {found}: give the folder of a {options.rule} policy"
        )
    return policy


def measure_rules(
    params: Params, prompts: Sequence, policies: Sequence[Policy], times: RoundCosts, **options
) -> np.ndarray:
    """Decode all prompts with each policy and sum up the rounds.

    Args:
      params: target and drafter.
      prompts: as `jaxspec.decode` takes them; decoded one at a time.
      policies: to compare.
      times: of the rounds.
      options: of `jaxspec.decode`.

    Returns:
      float64 [policies, 5]: tokens, rounds, modelled seconds, draft steps and verified rows.
    """
    found = np.zeros((len(policies), 5))
    for prompt in tqdm(prompts, desc="tune", unit="prompt"):
        for own, policy in zip(found, policies, strict=True):
            done = jaxspec.decode(
                params, prompt, **group_options(policy=policy, **options)
            ).per_round
            seconds = times.seconds(done.context, rows=done.rows, steps=done.steps).sum()
            own += done.tokens.sum(), len(done.tokens), seconds, done.steps.sum(), done.rows.sum()
    return found


def search_thresholds(options: TuneOptions) -> tuple[Policy, dict[str, Any]]:
    """Try every pair of threshold and rows, and save the fastest.

    Returns:
      (the policy, its report: figures of the `best` pair, of the rule's `own` default threshold
      with all rows, and of `all` pairs).

    Raises:
      ValueError, OSError: prompts, times or options are unusable.
    """
    times, params = load_costs(options.times), options.load()
    settings = rounds_of(times)
    drafter, budget = settings["drafter"], settings["budget"]
    made_for = about(params, drafter, settings)
    rule = make_tuned_rule(options, settings["depth"] - 1, made_for)
    asked = options.read(params)
    prompts = [
        asked[number].content
        for number in np.flatnonzero(mark_held_out([prompt.domain for prompt in asked]))
    ]
    if not prompts:
        raise ValueError(
            f"only every {HELD_OUT}th prompt of a domain is used: give more prompts of a domain"
        )
    own = round(float(rule.controls.threshold), 6)
    thresholds = sorted({own, *(options.thresholds or THRESHOLDS[options.rule])})
    pairs = list(
        itertools.product(thresholds, sorted({row or budget for row in options.rows} | {budget}))
    )
    widths = (1, *(width for width in times.widths if width > 1))
    policies = [
        compose(replace_threshold(rule, value), make_static(rows=rows, widths=widths))
        for value, rows in pairs
    ]
    settings |= {"max_new_tokens": options.max_new_tokens, "temperature": options.temperature}
    table = [
        _figures(*one)
        for one in zip(
            pairs, measure_rules(params, prompts, policies, times, **settings), strict=True
        )
    ]
    best = max(range(len(pairs)), key=lambda i: table[i]["tokens_per_second"])
    report = {
        "rule": options.rule,
        "prompts": len(prompts),
        "best": table[best],
        "own": table[pairs.index((own, budget))],
    }
    # If the best threshold is the first or last one tried, a better one may lie beyond.
    report |= {"at_the_end": pairs[best][0] in (thresholds[0], thresholds[-1]), "all": table}
    save_policy(
        policies[best],
        options.out,
        made_for | {"model": options.target, STEP_COSTS: times.fingerprint},
    )
    write_text(options.out / "report.json", json.dumps(report, indent=1) + "\n")
    return policies[best], report


def _figures(pair: tuple[float, int], totals: np.ndarray) -> dict[str, float]:
    tokens, rounds, seconds, steps, rows = (float(total) for total in totals)
    return {
        "threshold": pair[0],
        "rows": pair[1],
        "tokens_per_second": tokens / seconds,
        "acceptance_length": tokens / rounds,
        "mean_steps": steps / rounds,
        "mean_rows": rows / rounds,
    }


if __name__ == "__main__":
    with one_line_errors():
        _, made = search_thresholds(tyro.cli(TuneOptions))
        print(json.dumps({name: value for name, value in made.items() if name != "all"}, indent=1))
