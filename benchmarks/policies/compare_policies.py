"""`python -m benchmarks policies`: compare policies on one method by three clocks, which are never
mixed.

Every contender decodes every prompt. Its rounds are timed in three ways:
  modelled: sums of parts from a table of round times;
  replayed: wall clock, with a policy that reads the recorded decisions and computes nothing;
  whole: wall clock, with the contender's own computation. The time beyond the replay is the
    contender's own share.

A replay directly follows its decode, which may favour it. The apparent cost of `static`, a policy
that only reads two numbers, shows by how much.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

import jaxspec
from jaxspec.bench.measure.conversations import ask_conversations
from jaxspec.bench.measure.decodes import (
    Run,
    check_prompts,
    estimate_drift,
    group_methods,
    make_run,
    remove_drift,
)
from jaxspec.bench.measure.methods import Method
from jaxspec.bench.report.summary import describe_environment, summarise
from jaxspec.call.options import group_options
from jaxspec.core.runtime.clock import order_turns, repeat_until_compiled
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.policies.compose import compose
from jaxspec.policies.rules.replayed import make_replay
from jaxspec.tuner.calibrate.by_rows import policy_for
from jaxspec.tuner.calibrate.by_steps import STEP_COSTS
from jaxspec.tuner.calibrate.round_clock import plan_rounds
from jaxspec.tuner.tuner import process_tuner

CLOCKS = ("modelled", "replayed", "whole")


class ContenderDecode(NamedTuple):
    """A contender's decode of a prompt: its run by each clock (None: unmeasured) and its rounds."""

    modelled: Run
    replayed: Run | None
    whole: Run
    steps: np.ndarray
    rows: np.ndarray


def make_contenders(
    params,
    base: Method,
    names: Sequence[str],
    options: dict[str, Any],
    times: RoundCosts | None = None,
) -> list[Method]:
    """Make the contenders: `ar`, and the method with each policy.

    Args:
      names: `[LABEL=]POLICY`, where POLICY is `none`, a name or folder for `make_named`, or
        several of these joined by `+`.
      options: keyword arguments of `jaxspec.decode` for all contenders.
      times: round costs that trained policies should have been trained with; a policy trained with
        others gives a warning (None: do not compare).

    Raises:
      ValueError: two contenders have the same label, or a policy does not exist.
    """
    found, settings = [Method("ar", {"drafter": "ar"})], options | base.options
    made_with = {} if times is None else {STEP_COSTS: times.fingerprint}
    for name in map(str.strip, names):
        label, equals, given = name.rpartition("=")
        label = label if equals else Path(given).name
        joined = [] if given == "none" else given.split("+")
        parts = [
            policy_for(params, settings["drafter"], part, settings, made_with) for part in joined
        ]
        policy = {"policy": parts[0] if len(parts) == 1 else compose(*parts)} if parts else {}
        found.append(Method(label, base.options | policy))
    repeated = [
        method.name
        for i, method in enumerate(found)
        if method.name in {other.name for other in found[:i]}
    ]
    if repeated:
        raise ValueError(
            f"two contenders are called {repeated[0]!r}: put another label before one, as in "
            "LABEL=POLICY"
        )
    return found


def compare_policies(
    params,
    prompts: Sequence[LabelledPrompt],
    contenders: Sequence[Method],
    times: RoundCosts,
    *,
    repeats: int = 5,
    against: str | None = None,
    options: dict[str, Any] | None = None,
    progress: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Measure contenders (the first is `ar`); return a report ready for JSON.

    They take turns within a prompt, each followed by its replay, see `order_turns`. Drift of the
    machine between repeats is divided out. A decode that compiled anything is repeated and not
    counted. A policy keeps what it learned from prompt to prompt.

    Args:
      prompts: prompts that nothing was trained or tuned on; later turns of conversations are asked
        too.
      contenders: methods that differ in their policy, or have none.
      times: costs of the method's rounds.
      repeats: counted decodes of each prompt by each contender.
      against: name of a contender that the others are also compared with, in the same decodes.
      options: keyword arguments of `jaxspec.decode` for all contenders.

    Returns:
      `device`, `versions`, `dtype`, `repeats`, `compile_seconds` {contender: s}, and `results`: the
      records of `jaxspec.bench.report.summary.summarise` for each clock, with `clock`. Records of
      the clock `whole` also have `steps` and `rows` (means over drafted rounds), `drafted_rounds`
      (their share), `own_share` (share of the time that the policy's own computation takes; None if
      nothing can be replayed), and `against` and `against_ci`, speed over that contender's with a
      paired interval.

    Raises:
      ValueError: `repeats` is below 1, no contender is called `against`, or as `jaxspec.decode`.
    """
    if repeats < 1:
        raise ValueError(f"repeats is {repeats}: give at least 1")
    together = _groups(contenders, against)
    prompts = ask_conversations(params, prompts, options=options, progress=progress)
    check_prompts(params, prompts, dict(options or {}))
    results, compile_seconds = [], dict.fromkeys((one.name for one in contenders), 0.0)
    for number, group in enumerate(together):
        decoded, compiling = _decode_all(
            params, prompts, group, times, repeats, dict(options or {}), progress
        )
        compile_seconds |= {
            name: compile_seconds[name] + seconds for name, seconds in compiling.items()
        }
        drift = estimate_drift([one.whole for one in decoded])
        decoded = [_steadied(one, drift) for one in decoded]
        for clock in CLOCKS:
            runs = [getattr(one, clock) for one in decoded if getattr(one, clock) is not None]
            paired = (
                summarise(runs, prompts, baseline=against) if against and clock == "whole" else []
            )
            for i, record in enumerate(summarise(runs, prompts)):
                if number == 0 or record["method"] not in ("ar", against):
                    more = _rounds(decoded, record, prompts) if clock == "whole" else {}
                    ratio = (
                        {"against": paired[i]["speedup"], "against_ci": paired[i]["speedup_ci"]}
                        if paired
                        else {}
                    )
                    results.append({"clock": clock} | record | more | ratio)
        jax.clear_caches()
    about = {
        "options": dict(options or {}),
        "repeats": repeats,
        "against": against,
        "times": times.about,
    }
    return (
        describe_environment(params)
        | about
        | {"compile_seconds": compile_seconds, "results": results}
    )


def _groups(contenders: Sequence[Method], against: str | None) -> list[list[Method]]:
    """Group contenders as `group_methods` does, and add the contender called `against` to each
    group, so that all others are compared with it in the same decodes.
    """
    first, *others = contenders
    shared = [one for one in others if one.name == against]
    if against not in (None, first.name) and not shared:
        names = [one.name for one in contenders]
        raise ValueError(f"no contender is called {against!r}: {choose_one(against, names)}")
    rest = [one for one in others if one.name != against]
    return [[first, *shared, *group[1:]] for group in group_methods([first, *rest])]


def _steadied(one: ContenderDecode, drift) -> ContenderDecode:
    return one._replace(
        whole=remove_drift(one.whole, drift),
        replayed=one.replayed and remove_drift(one.replayed, drift),
    )


def _decode_all(
    params, prompts, contenders, times, repeats, options, progress
) -> tuple[list[ContenderDecode], dict[str, float]]:
    """Decode every prompt with every contender; return the decodes and {contender: seconds of
    compilation}.
    """
    found, policies = [], {one.name: one.options.get("policy") for one in contenders}
    compile_seconds = dict.fromkeys(policies, 0.0)
    for index, prompt in enumerate(prompts):
        progress(f"prompt {index + 1} of {len(prompts)} ({prompt.domain})")
        for repeat in range(repeats):
            for one in order_turns(contenders, index, repeat):
                settings = options | one.options | {"policy": policies[one.name]}
                decode = functools.partial(
                    jaxspec.decode, params, prompt.content, tuner=process_tuner()
                )
                out, compiling = repeat_until_compiled(
                    functools.partial(decode, **group_options(**settings))
                )
                compile_seconds[one.name] += compiling
                policies[one.name] = out.policy
                again = _replayed(decode, settings, out)
                whole, replayed = (x and make_run(one.name, index, repeat, x) for x in (out, again))
                found.append(_decoded(params, settings, out, whole, replayed, times))
    return found, compile_seconds


def _replayed(decode, settings: dict[str, Any], out):
    """Run the same rounds again with a policy that only reads the recorded decisions; return the
    decode itself if nothing was decided.
    """
    policy = settings["policy"]
    if policy is None:
        return out
    if policy.config.functions().act.keep is not None:
        return None
    # Rounds never outnumber tokens. A multiple of 64 needs only one compilation.
    room = -(-settings.get("max_new_tokens", 256) // 64) * 64
    again, _ = repeat_until_compiled(
        lambda: decode(
            **group_options(**settings | {"policy": make_replay(policy, out.per_round, room)})
        )
    )
    if again.tokens != out.tokens or not np.array_equal(again.per_round.rows, out.per_round.rows):
        raise RuntimeError(
            "a replay took other rounds than the decode that it repeats: compare nothing with it"
        )
    return again


def _decoded(
    params, settings, out, whole: Run, replayed: Run | None, times: RoundCosts
) -> ContenderDecode:
    rounds = out.per_round
    steps = rounds.steps
    if steps is None:
        session = {name: value for name, value in settings.items() if name != "policy"}
        plan = plan_rounds(params, session)
        steps = np.full(
            len(rounds.rows),
            -1 if plan.drafter is None else plan.steps,
        )
    seconds = float(times.seconds(rounds.context, rows=rounds.rows, steps=steps).sum())
    return ContenderDecode(
        dataclasses.replace(whole, decode_seconds=seconds), replayed, whole, steps, rounds.rows
    )


def _rounds(
    decoded: Sequence[ContenderDecode], record: dict[str, Any], prompts: Sequence[LabelledPrompt]
) -> dict[str, Any]:
    """Compute means over the rounds of a record's decodes."""
    own = [
        one
        for one in decoded
        if one.whole.method == record["method"]
        and record["domain"] in ("all", prompts[one.whole.prompt].domain)
    ]
    steps, rows = (
        np.concatenate([getattr(one, name) for one in own]) for name in ("steps", "rows")
    )
    drafted = steps >= 0
    known = [one for one in own if one.replayed is not None]
    seconds = [
        sum(getattr(one, clock).decode_seconds for one in known) for clock in ("replayed", "whole")
    ]
    return {
        "steps": float(steps[drafted].mean()) if drafted.any() else None,
        "rows": float(rows[drafted].mean()) if drafted.any() else None,
        "drafted_rounds": float(drafted.mean()) if len(drafted) else None,
        "own_share": 1 - seconds[0] / seconds[1] if known and record["method"] != "ar" else None,
    }
