"""Measure the time of a round of the loop beyond the forwards of the target and the drafter."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.measure.methods import Method
from jaxspec.bench.measure.phases import (
    prepare_sessions,
    run_draft,
    run_drafter_forward,
    run_grow,
    run_noise,
    run_target_forward,
    time_round,
)
from jaxspec.call.session import Session, matmul_precision, run_prefill
from jaxspec.core.params import Params
from jaxspec.core.runtime.clock import time_call
from jaxspec.core.state import DecodeState
from jaxspec.core.tree import take_rows
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.round.loop import run
from jaxspec.round.plan import make_plan


def measure_overhead(
    params: Params,
    prompts: Sequence[LabelledPrompt],
    methods: Sequence[Method],
    *,
    options: dict[str, Any] | None = None,
    rounds: int = 24,
) -> dict[str, dict[str, float]]:
    """Time a round and its forwards: medians in ms over up to `rounds` rounds per prompt.

    - `round`: one round of the loop as `jaxspec.decode` runs it;
    - `target_forward`: the target's forward over the round's rows, with logits;
    - `draft_forward`: the drafter's forward with logits, or all of drafting for drafters that work
      in steps;
    - `absorb`: the drafter's forward over new features.

    Each is a separate program. They are timed one after the other in every round, in rotated order,
    so that drift of the machine affects all alike. Each figure includes its dispatch, about 0.1 ms
    on a CPU.

    Returns:
      {method: {"round", "target_forward", "draft_forward", "absorb", "overhead", ...}}; `overhead`
      is the median over rounds of round / (target_forward + draft_forward + absorb) - 1, and
      `draft`, `tree`, `verify` and `rest` are the other phases of `jaxspec.bench.measure.phases`.
    """
    samples: dict[str, list[dict[str, float]]] = defaultdict(list)
    for prompt in prompts:
        sessions = prepare_sessions(params, prompt, methods, options)
        pairs = {}
        for name, session in sessions.items():
            with matmul_precision(session):
                _time_pair(session, run_prefill(session), run_prefill(session), 0)  # compiles
                pairs[name] = run_prefill(session), run_prefill(session)
        for turn in range(rounds):
            for name, session in sessions.items():
                if not bool(np.all(pairs[name][0].done)):
                    with matmul_precision(session):
                        pairs[name], seconds = _time_pair(session, *pairs[name], turn)
                    samples[name].append(seconds)
    return {name: _medians(some) for name, some in samples.items()}


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    found = {key: 1e3 * _median(s[key] for s in samples) for key in samples[0]}
    needed = [s["target_forward"] + s["draft_forward"] + s["absorb"] for s in samples]
    return found | {
        "overhead": _median(s["round"] / need - 1 for s, need in zip(samples, needed, strict=True))
    }


def _median(values: Iterable[float]) -> float:
    return float(np.median(list(values)))


def _time_pair(
    session: Session, whole: DecodeState, split: DecodeState, turn: int
) -> tuple[tuple[DecodeState, DecodeState], dict[str, float]]:
    """Run one round of the loop on the state `whole` and the same round in pieces on `split`.

    Args:
      turn: rotates which piece is timed first.

    Returns:
      (both next states, seconds by piece).
    """
    params, request, config = session.params, session.request, session.config
    plan = make_plan(params.spec, config)
    noise = run_noise(params, request, split, config=config)
    drafted = run_draft(params, request, split, noise, config=config)
    tree = run_grow(params, request, split, drafted, config=config)
    width = next(width for width in plan.widths if width >= int(jnp.max(tree.size)))
    one_step = plan.drafter is not None and plan.drafter.expand is None
    pieces: dict[str, tuple] = {
        "target_forward": (run_target_forward, split, take_rows(tree, width)),
        "round": (run, whole, jnp.int32(1)),
        **({"draft_forward": (run_drafter_forward, split)} if one_step else {}),
    }
    jax.block_until_ready((whole, split, pieces["target_forward"][2]))
    names, seconds = list(pieces), {"draft_forward": 0.0}
    for i in range(len(names)):
        name = names[(i + turn) % len(names)]
        program, *args = pieces[name]
        result, seconds[name] = time_call(program, params, request, *args, config=config)
        whole = result if name == "round" else whole
    split, phases = time_round(session, split)
    if plan.drafter is not None and not one_step:
        seconds["draft_forward"] = phases["draft"]
    return (whole, split), seconds | phases
