"""Tune a rule to a drafter and a machine: its threshold, and how many rows it verifies.

    python -m training.policies.tune svip --prompts corpus.jsonl.gz --times times.json --out
    policies/svip python -m training.policies.tune disco --head heads/disco --prompts
    corpus.jsonl.gz --times times.json --out policies/disco

The papers' thresholds are those of other drafters, and rules that decide how deep to draft leave
all rows of a round to be verified. Every threshold is therefore tried with every number of rows, a
constant beside the rule, in decodes of validation prompts: those that `training.policies.classifiers`
holds out with the same `--prompts` and `--limit`. Both are read by the rounds, so that a search
compiles once. Scored are tokens a second by modelled time, the times of `training.rl.times`, which
also say what the rounds are; the best pair is saved. The network of a learned rule is that of a
saved policy, `--head`.

DDD may stop after every step here: its authors look after three of them, because there each look
stalls the device.
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
from jaxspec.bench.calibrate import about
from jaxspec.bench.calibrate_steps import STEP_COSTS
from jaxspec.bench.measure.prompt_files import read_prompts
from jaxspec.core.params import Params
from jaxspec.costs.files import load_costs
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.tokenizer import load_tokenizer
from jaxspec.policies.baselines.static import make_static
from jaxspec.policies.compose import compose
from jaxspec.policies.learned.c2t import C2TConfig
from jaxspec.policies.learned.disco import DiscoConfig
from jaxspec.policies.learned.specdec_plus import SpecDecPlusConfig
from jaxspec.policies.protocol import Policy
from jaxspec.policies.rules.ddd import make_ddd
from jaxspec.policies.rules.svip import make_svip
from jaxspec.policies.stopping import replace_threshold
from jaxspec.policies.store import load_policy, save_policy
from training.command import one_line_errors
from training.splits import HELD_OUT, mark_held_out

# From where a rule always stops, or keeps nothing, to where it hardly ever does.
THRESHOLDS = {
    "ddd": (-3.0, -2.0, -1.5, -1.0, -0.7, -0.5, -0.3, -0.2, -0.1, -0.05),
    "svip": (0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1),
    "disco": (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8),
    "specdec_plus": (0.1, 0.2, 0.3, 0.5, 0.7, 0.8, 0.9, 0.95),
    "c2t": (0.1, 0.2, 0.3, 0.5, 0.6, 0.7, 0.8),
}

# Rules whose networks `training.policies.classifiers` trains.
CONFIGS = {"disco": DiscoConfig, "specdec_plus": SpecDecPlusConfig, "c2t": C2TConfig}


@dataclasses.dataclass
class TuneOptions:
    """Options of the search.

    Attributes:
      rule: to be tuned.
      prompts: JSON Lines, see `jaxspec.bench.measure.prompt_files.read_prompts`. times: what rounds take. out:
        folder of the policy.
      head: folder of the policy whose network a learned rule has.
      target: `mini`, a directory or a hub id. drafter: one that ships with it, a directory or a hub
        id.
      thresholds: to try; none takes `THRESHOLDS`. The rule's own is tried as well.
      rows: to try, verified at most, the root included; 0 stands for all.
      limit: prompts of each domain, of which every fourth is used. chat: they are users' chat
        messages.
      max_new_tokens: of each answer. temperature: of the answers.
      dtype: of target and drafter; None picks what suits the device.
    """

    rule: Annotated[Literal["ddd", "svip", "disco", "specdec_plus", "c2t"], tyro.conf.Positional]
    prompts: Path
    times: Path
    out: Path
    head: Path | None = None
    target: str = "mini"
    drafter: str = "eagle3"
    thresholds: tuple[float, ...] = ()
    rows: tuple[int, ...] = (4, 6, 8, 12, 0)
    limit: int | None = 32
    chat: bool = False
    max_new_tokens: int = 128
    temperature: float = 0.0
    dtype: str | None = None


def rounds_of(times: RoundCosts) -> dict[str, Any]:
    """Options of `jaxspec.decode` for the rounds that these are the times of.

    Raises:
      ValueError: the times do not say.
    """
    told = times.about
    missing = [name for name in ("drafter", "builder", "width", "steps") if name not in told]
    if missing:
        raise ValueError(
            f"the round costs do not name the {missing[0]} of their rounds: measure them with training.rl.times"
        )
    builder = f"{told['builder']}/w{told['width']}" if told["width"] else told["builder"]
    settings = {"method": told["drafter"], "builder": builder, "budget": times.widths[-1]}
    return settings | {"depth": told["steps"] + 1}


def make_tuned_rule(options: TuneOptions, steps: int, made_for: dict[str, Any]) -> Policy:
    """The rule with its own threshold, for rounds of so many draft steps.

    Raises:
      ValueError: there is no network, or the saved policy is no rule with a threshold.
        FileNotFoundError: no policy.
    """
    if options.rule == "ddd":
        return make_ddd(checks=tuple(range(steps)), most=steps)
    if options.rule == "svip":
        return make_svip()
    if options.head is None:
        raise ValueError(
            f"{options.rule} has a network: give --head, the folder of training.policies.classifiers"
        )
    policy = load_policy(options.head, about=made_for)
    if not isinstance(policy.config, CONFIGS[options.rule]):
        raise ValueError(
            f"{options.head} holds a {type(policy.config).__name__}: give the folder of a {options.rule} policy"
        )
    return policy


def measure_rules(
    params: Params, prompts: Sequence, policies: Sequence[Policy], times: RoundCosts, **options
) -> np.ndarray:
    """Totals of decodes of all prompts with each policy: float64 [policies, 5].

    They are tokens, rounds, modelled seconds, draft steps and verified rows.

    Args:
      prompts: as `jaxspec.decode` takes them, one at a time. options: of it.
    """
    found = np.zeros((len(policies), 5))
    for prompt in tqdm(prompts, desc="tune", unit="prompt"):
        for own, policy in zip(found, policies, strict=True):
            done = jaxspec.decode(params, prompt, policy=policy, **options).per_round
            seconds = times.seconds(done.context, rows=done.rows, steps=done.steps).sum()
            own += done.tokens.sum(), len(done.tokens), seconds, done.steps.sum(), done.rows.sum()
    return found


def search_thresholds(options: TuneOptions) -> tuple[Policy, dict[str, Any]]:
    """Try every pair and save the fastest; returns it, and `best`, `own` (the rule's own threshold
    with all rows) and `all`.

    Raises:
      ValueError, OSError: unusable prompts, times or options.
    """
    times, params = (
        load_costs(options.times),
        jaxspec.load(options.target, drafter=options.drafter, dtype=options.dtype),
    )
    settings = rounds_of(times)
    method, budget = settings["method"], settings["budget"]
    made_for = about(params, method, settings)
    rule = make_tuned_rule(options, settings["depth"] - 1, made_for)
    tokenizer = load_tokenizer(params.spec.tokenizer) if params.spec.tokenizer else None
    asked = read_prompts(options.prompts, tokenizer, limit=options.limit, chat=options.chat)
    prompts = [
        asked[number].content
        for number in np.flatnonzero(mark_held_out([prompt.domain for prompt in asked]))
    ]
    if not prompts:
        raise ValueError(
            f"every {HELD_OUT}th prompt of a domain is used, and there is none: give more of a domain"
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
    # A best at the end of what was tried says little of what lies beyond.
    report |= {"at_the_end": pairs[best][0] in (thresholds[0], thresholds[-1]), "all": table}
    save_policy(
        policies[best],
        options.out,
        made_for | {"model": options.target, STEP_COSTS: times.fingerprint},
    )
    (options.out / "report.json").write_text(json.dumps(report, indent=1) + "\n")
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
