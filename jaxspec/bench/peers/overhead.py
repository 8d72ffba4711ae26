"""What a round of the loop takes beyond the forwards of the target and the drafter."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.methods import Method
from jaxspec.bench.profile import run_draft, run_grow, run_noise, time_round
from jaxspec.bench.prompts import Prompt
from jaxspec.core.state import DecodeState, Tree
from jaxspec.core.tree import take_rows
from jaxspec.engine.loop import run
from jaxspec.engine.plan import make_plan
from jaxspec.engine.proposals import propose
from jaxspec.engine.round import Round, compile_phase
from jaxspec.engine.session import precision, prefilled, prepare
from jaxspec.engine.verify import project, run_target


def overhead(
    params,
    prompts: Sequence[Prompt],
    methods: Sequence[Method],
    *,
    options: dict[str, Any] | None = None,
    rounds: int = 24,
) -> dict[str, dict[str, float]]:
    """Milliseconds of a round and of the forwards that it cannot do without, medians over up to
    `rounds` rounds a prompt.

    `round` is one round of the loop as `jaxspec.decode` runs it, `target_forward` the target's over
    the round's rows with their logits, `draft_forward` the drafter's with its logits (of drafters
    that work in steps, drafting as a whole), `absorb` its intake of new features, a forward too.
    Each is a program of its own and they are timed one after the other in every round, in rotated
    order, so that drift of the machine falls on all alike; dispatch, some 0.1 ms on a CPU, is part
    of each.

    Returns:
      {method: {"round", "target_forward", "draft_forward", "absorb", "overhead", ...}}; `overhead`
      is the median over rounds of round / (target_forward + draft_forward + absorb) - 1, and
      `draft`, `tree`, `verify` and `rest` are the other phases of `jaxspec.bench.profile`.
    """
    samples: dict[str, list[dict[str, float]]] = defaultdict(list)
    for prompt in prompts:
        sessions = {
            m.name: prepare(params, prompt.content, **{**(options or {}), **m.options})
            for m in methods
        }
        pairs = {}
        for name, session in sessions.items():
            with precision(session):
                _sample(session, prefilled(session), prefilled(session), 0)  # compiles
                pairs[name] = prefilled(session), prefilled(session)
        for turn in range(rounds):
            for name, session in sessions.items():
                if not bool(np.all(pairs[name][0].done)):
                    with precision(session):
                        pairs[name], seconds = _sample(session, *pairs[name], turn)
                    samples[name].append(seconds)
    return {name: _medians(some) for name, some in samples.items()}


def _medians(samples: list[dict[str, float]]) -> dict[str, float]:
    found = {key: 1e3 * _median(s[key] for s in samples) for key in samples[0]}
    needed = [s["target_forward"] + s["draft_forward"] + s["absorb"] for s in samples]
    return found | {
        "overhead": _median(s["round"] / need - 1 for s, need in zip(samples, needed, strict=True))
    }


def _median(values) -> float:
    return float(np.median(list(values)))


def _sample(session, whole, split, turn: int) -> tuple[tuple[Any, Any], dict[str, float]]:
    """One round of the loop on the state `whole` and the same round in pieces on `split`, and the
    seconds of each.

    `turn` says which of them comes first.
    """
    params, request, config = session.params, session.request, session.config
    plan = make_plan(params.spec, config)
    jax.block_until_ready((whole, split))
    noise = run_noise(params, request, split, config=config)
    drafted = run_draft(params, request, split, noise, config=config)
    tree = jax.block_until_ready(run_grow(params, request, split, drafted, config=config))
    width = next(width for width in plan.widths if width >= int(jnp.max(tree.size)))
    rows = jax.block_until_ready(take_rows(tree, width))
    one_step = plan.drafter is not None and plan.drafter.expand is None
    pieces = {
        "target_forward": (_run_target, params, request, split, rows),
        "round": (run, params, request, whole, jnp.int32(1)),
        **({"draft_forward": (_run_drafter, params, request, split)} if one_step else {}),
    }
    names, out, seconds = list(pieces), {}, {"draft_forward": 0.0}
    for i in range(len(names)):
        name = names[(i + turn) % len(names)]
        out[name], seconds[name] = _timed(*pieces[name], config=config)
    whole = out["round"]
    split, split_seconds = time_round(session, split)
    if plan.drafter is not None and not one_step:
        seconds["draft_forward"] = split_seconds["draft"]
    return (whole, split), seconds | dict(split_seconds)


def _timed(function, *args, config):
    started = time.perf_counter()
    out = jax.block_until_ready(function(*args, config=config))
    return out, time.perf_counter() - started


def _target_forward(round: Round, state: DecodeState, tree: Tree):
    passed = run_target(round, state, tree)
    # The logits' argmax stands for them: no loop writes them out.
    token = jnp.argmax(project(round, passed.hidden), -1)
    return token, passed.features, passed.k, passed.v


def _draft_forward(round: Round, state: DecodeState) -> jax.Array:
    return propose(round, state)[0].logits


_run_target = compile_phase(_target_forward)
_run_drafter = compile_phase(_draft_forward)
