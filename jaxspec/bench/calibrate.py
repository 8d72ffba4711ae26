"""Measure what rounds of a drafter take on this machine, for the policies that choose by it.

The rounds are those of the decode loop itself, compiled once with a policy of fixed size, so that
what is measured is what the controller will be charged: a table over (rows verified, cached
tokens), see `jaxspec.costs.latency_table`.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders import Builder, make_builder
from jaxspec.core.params import Params
from jaxspec.costs.latency_table import LatencyTable, load_table, make_table, save_table
from jaxspec.drafters.registry import record_of
from jaxspec.engine.loop import run
from jaxspec.engine.plan import make_plan
from jaxspec.engine.session import precision, prefilled, prepare
from jaxspec.policies.bastion.controller import make_policy
from jaxspec.policies.named import make_named
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import fingerprint
from jaxspec.targets import quant

# Rounds of a sample: so many that the call around them does not count.
ROUNDS = 48
# Options of `jaxspec.decode` that sampling depends on, and all that the time of a round depends on.
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
TIMED = ("builder", "budget", *SAMPLING, "block_size", "depth")
# What the fingerprint of such a table is called among the things that a policy was made for.
ROW_TIMES = "times of rows"


def default_widths(budget: int) -> tuple[int, ...]:
    """Widths to compile verification for: powers of two from 1 up to `budget`, which is always
    among them.
    """
    return (*(1 << i for i in range((budget - 1).bit_length())), budget)


def default_contexts(max_positions: int, tokens: int) -> tuple[int, ...]:
    """Context lengths to measure at: powers of four from 64 on, as far as the model goes if
    `tokens` are to follow.
    """
    room = max_positions - tokens
    return tuple(4**i for i in range(3, 9) if 4**i <= room) or (max(room // 2, 1),)


def calibrate(
    params: Params,
    method: str,
    *,
    budget: int = 32,
    widths: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    batch: int = 1,
    repeats: int = 9,
    **options: Any,
) -> LatencyTable:
    """Median times of rounds, by rows verified and cached tokens.

    Args:
      method: a drafter's name. budget: rows of the largest tree.
      widths: rows to compile verification for, 1 and `budget` among them (None: powers of two).
      contexts: cached tokens (None: 64, 256, 1,024, … as far as the model goes).
      batch: sequences decoded together. repeats: samples of each time; all sizes and contexts take
        turns in every repeat.
      options: of `jaxspec.decode` that the rounds are to have: builder, temperature and so on.

    Raises:
      ValueError: `ar`, a size out of range, or a context beyond the model's positions.
    """
    from scipy.optimize import isotonic_regression

    widths = default_widths(budget) if widths is None else tuple(widths)
    if widths[0] != 1 or widths[-1] != budget:
        raise ValueError(
            f"widths are {list(widths)}: give them in ascending order, from 1 to the budget, {budget}"
        )
    # Any positive times do: the size is fixed, nothing is chosen by them.
    fixed = make_policy(
        make_table(widths, (0.0,), (1.0,), [[1.0]] * len(widths)), "fixed", corrected=True
    )
    options = {"method": method, "budget": budget, "policy": fixed, **options}
    tokens = tokens_of(params, options)
    contexts = (
        default_contexts(params.spec.target.max_positions, tokens)
        if contexts is None
        else tuple(contexts)
    )
    rng = np.random.default_rng(0)
    cases = []
    for context in contexts:
        prompt = [
            rng.integers(0, params.spec.target.vocab_size, context).tolist() for _ in range(batch)
        ]
        session = prepare(params, prompt, max_new_tokens=tokens, ignore_eos=True, **options)
        if session.policy is None:
            raise ValueError(
                f"method {method!r} with a budget of {budget} drafts nothing: there is nothing to choose"
            )
        cases += [
            (session, session.request.controls.replace(rows=jnp.int32(size)))
            for size in (0, *widths)
        ]
    # All contexts in one go, for what the machine does meanwhile would seem to be theirs.
    draft, verify = [], []
    for plain, *drafted in round_seconds(cases, repeats).reshape(len(contexts), -1):
        # More rows do not take less time: where they seem to, a choice by these times would fall
        # for the noise in them.
        drafted = isotonic_regression(drafted).x
        draft.append(max(drafted[0] - plain, 0.0))
        verify.append([plain, *np.maximum(drafted[1:] - draft[-1], 1e-9)])
    return make_table(widths, contexts, draft, np.transpose(verify))


def tokens_of(params: Params, options: Mapping[str, Any]) -> int:
    """Room for the tokens of a sample; `options` of `jaxspec.decode`."""
    return (ROUNDS + 1) * make_plan(params.spec, prepare(params, [0], **options).config).longest


def round_seconds(cases: Sequence[tuple[Any, Any]], repeats: int) -> np.ndarray:
    """Seconds a round of every case: float64 [len(cases)].

    All cases take turns in every repeat, every other time backwards. By how much a whole repeat was
    slower or faster, since the machine was, is divided out before the median over the repeats is
    taken.

    Args:
      cases: (session, what its policy reads) each; None keeps what the session has.
    """
    samples = np.zeros((repeats, len(cases)))
    with precision(cases[0][0]):
        starts = {id(session): jax.block_until_ready(prefilled(session)) for session, _ in cases}
        for repeat in range(-1, repeats):  # the first turn compiles
            for i in range(len(cases))[:: -1 if repeat % 2 else 1]:
                session, controls = cases[i]
                request = (
                    session.request
                    if controls is None
                    else session.request.replace(controls=controls)
                )
                state = jax.block_until_ready(jax.tree.map(jnp.copy, starts[id(session)]))
                began = time.perf_counter()
                state = jax.block_until_ready(
                    run(session.params, request, state, jnp.int32(ROUNDS), config=session.config)
                )
                if repeat >= 0:
                    samples[repeat, i] = (time.perf_counter() - began) / max(
                        int(jnp.max(state.rounds)), 1
                    )
    drift = np.exp(np.log(samples).mean(axis=1, keepdims=True))
    return np.median(samples / drift, axis=0) * np.median(drift)


def table_path(
    params: Params, method: str, *, budget: int = 32, batch: int = 1, **options: Any
) -> Path:
    """Where the table of such rounds is kept: one file for each device, model, drafter, settings
    and version of JAX.

    Under the folder of the environment variable `JAXSPEC_CACHE`, else of the user's cache.
    """
    # Quantised weights compute in the dtype of others, at other speeds.
    weights = f"{params.dtype} {quant.kind_of(params.target) or ''}".strip()
    options["builder"] = str(_builder(params, method, options))
    described = repr(
        (
            params.spec.target,
            params.spec.drafter(method),
            weights,
            budget,
            batch,
            sorted(options.items()),
        )
    )
    digest = hashlib.sha256(described.encode()).hexdigest()[:16]
    device = jax.devices()[0].device_kind.replace(" ", "-").replace("/", "-")
    folder = Path(os.environ.get("JAXSPEC_CACHE") or Path.home() / ".cache" / "jaxspec") / "latency"
    return folder / f"{device}-jax{jax.__version__}-{method}-{digest}.json"


def timed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Those of `options` that the time of a round depends on, as `measured` takes them; None stands
    for the default.
    """
    return {name: options[name] for name in TIMED if options.get(name) is not None}


def about(params: Params, method: str, options: Mapping[str, Any]) -> dict[str, str]:
    """What policies are made for, by name, to be kept with them; see `jaxspec.policies.store`.

    Args:
      options: of `jaxspec.decode`.
    """
    return {
        "target": _target(params),
        "drafter": method,
        "builder": _builder(params, method, options).name,
        "device": jax.devices()[0].device_kind,
    }


def _builder(params: Params, method: str, options: Mapping[str, Any]) -> Builder:
    """The builder that `options` have by any of its spellings, or by default."""
    default = record_of(params.spec.drafter(method)).default_builder
    return make_builder(options.get("builder") or default)


def _target(params: Params) -> str:
    """A target by its sizes and its norms' weights, which are few, are in no two models alike, and
    are never quantised.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params.target["params"])
    # Rounded, so that a model that is loaded in another dtype is the same one.
    norms = [
        leaf.astype(jnp.bfloat16)
        for path, leaf in leaves
        if getattr(path[-1], "key", None) == "scale"
    ]
    sizes = params.spec.target
    return f"{sizes.family} of {sizes.num_layers} layers, {sizes.hidden_size} wide, {fingerprint(norms)}"


def policy_for(
    params: Params,
    method: str,
    name: str,
    options: Mapping[str, Any],
    told: Mapping[str, Any] | None = None,
) -> Policy:
    """The policy of a name, see `jaxspec.policies.named.make_named`, over times that are measured
    here if none are kept.

    One that was saved is compared with what it is to be used for, and with the times that are kept,
    if there are any.

    Args:
      options: of `jaxspec.decode`. told: further entries to compare with those that were saved.

    Raises:
      ValueError: no such policy.
    """
    path = table_path(params, method, **timed(options))
    kept = {ROW_TIMES: fingerprint(load_table(path))} if path.is_file() else {}
    made_for = about(params, method, options) | kept | (told or {})
    return make_named(name, lambda: measured(params, method, **timed(options)), made_for)


def measured(params: Params, method: str, **options: Any) -> LatencyTable:
    """The table of `table_path`, measured and kept if it is not there; arguments as of
    `calibrate`.
    """
    sizes = {
        name: options.get(name)
        for name in ("widths", "contexts", "repeats")
        if options.get(name) is not None
    }
    named = {
        name: value
        for name, value in options.items()
        if name not in ("widths", "contexts", "repeats")
    }
    path = table_path(params, method, **named)
    if path.is_file() and not sizes:
        return load_table(path)
    table = calibrate(params, method, **options)
    described = {
        "device": jax.devices()[0].device_kind,
        "jax": jax.__version__,
        "method": method,
        **named,
    }
    save_table(table, path, {name: str(value) for name, value in described.items()})
    return table
