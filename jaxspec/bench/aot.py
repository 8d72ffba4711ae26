"""Compile the decode loop of a named architecture for a GPU you don't have, and report its rounds.

Weights are only shapes: nothing is allocated, so an 8B model compiles on a laptop.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.bench.architectures import DRAFTER, abstract_params, architecture, swap_drafter
from jaxspec.builders import make_builder
from jaxspec.core.params import Spec
from jaxspec.core.sampling import make_sampling
from jaxspec.core.state import DecodeState, Request, Tree
from jaxspec.costs.round_costs import make_costs
from jaxspec.engine.arguments import check_budget, check_count
from jaxspec.engine.automatic import GPU_WIDTHS, make_automatic
from jaxspec.engine.draft import draft
from jaxspec.engine.grow import grow
from jaxspec.engine.loop import run
from jaxspec.engine.plan import DecodeConfig, make_plan
from jaxspec.engine.prefill import prefill
from jaxspec.engine.round import Round, compile_phase
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.learned.blockpilot import Predictor, make_blockpilot
from jaxspec.policies.protocol import Policy
from jaxspec.policies.registry import AUTOMATIC
from jaxspec.targets.quant import check_kind, quantize_params
from jaxspec.targets.sharding.shares import widen
from pallas_kernels.aot import Program, compile_report

BLOCKPILOT = "blockpilot"
_BLOCKS = (4, 8, 16)
_PROMPT = 64
_FACTORIES = {
    "rounds": "aot:decode_loop",
    "prefill": "aot:prefill_program",
    "draft": "aot:draft_program",
    "visit": "aot_serve:visit_program",
    "feed": "aot_serve:feed_program",
}
_SHARED = {"rounds": "aot_shared:shared_loop", "prefill": "aot_shared:shared_prefill"}
_DTYPES = ("bfloat16", "float16", "float32")


def decode_loop(
    *,
    arch: str,
    method: str = DRAFTER,
    builder: str | None = "best_first",
    budget: int = 64,
    capacity: int = 2048,
    batch: int = 1,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    acceptance: str = "match",
    dtype: str = "bfloat16",
    layers: int | None = None,
    policy: str | None = None,
    quantize: str | None = None,
) -> Program:
    """Make the program `jaxspec.engine.loop.run` of a named architecture, ready to compile. Its
    arguments are shapes, and its caches are donated.

    Args:
      arch: one of `architectures.ARCHITECTURES`.
      method: `ar`, `jetspec`, `dspark`, `eagle3` or `specblock`.
      builder: see `jaxspec.decode`; None is the drafter's default; not read by `ar`.
      budget: see `jaxspec.decode`; not read by `ar`.
      capacity: rows of the caches.
      batch: number of sequences.
      temperature, top_k, top_p, min_p: see `make_sampling`; a temperature of 0 is greedy.
      acceptance: see `jaxspec.decode`; not read by `ar`.
      layers: use only this many of the target's layers; None: all.
      policy: a rule of the controller, which verifies a power of four of rows, up to the budget, or
        does not draft; `auto`, the default's on a GPU, with its own rows; or `blockpilot`, which
        chooses among blocks of 4, 8 and 16 slots.
      quantize: `int8` or `fp8` weights of the target, see `jaxspec.load`.

    Returns:
      The program, with the fact `cache_bytes`: the bytes of all donated caches.
    """
    start = prefill_program(
        arch=arch,
        method=method,
        builder=builder,
        budget=budget,
        capacity=capacity,
        batch=batch,
        temperature=temperature,
        top_k=top_k,
        top_p=top_p,
        min_p=min_p,
        acceptance=acceptance,
        dtype=dtype,
        layers=layers,
        policy=policy,
        quantize=quantize,
    )
    params, request = start.args[:2]
    config = start.static["config"]
    state = jax.eval_shape(functools.partial(start.function, **start.static), *start.args)
    rounds = jax.ShapeDtypeStruct((), jnp.int32)
    return Program(
        run,
        (params, request, state, rounds),
        {"config": config},
        {"cache_bytes": count_held(state)},
    )


def prefill_program(*, batch: int, capacity: int, **options: Any) -> Program:
    """Make the program that runs the prompts before `decode_loop` of the same options."""
    spec, config = describe_call(**options, capacity=capacity)
    sampling = {name: options[name] for name in ("temperature", "top_k", "top_p", "min_p")}
    plan = make_plan(spec, config)
    decides = _make_policy(options["policy"], options["budget"], spec) if config.policy else None
    params = abstract_params(spec, jnp.dtype(options["dtype"]))
    if options["quantize"] is not None:
        params = jax.eval_shape(
            functools.partial(quantize_params, kind=options["quantize"]), params
        )
    request = Request(
        limit=np.zeros(batch, np.int32),
        stop=np.zeros(8, np.int32),
        seed=np.int32(0),
        sequence=np.zeros(batch, np.uint32),
        sampling=make_sampling(**sampling)[1],
        controls=decides and decides.controls,
    )
    control = plan.policy.init(plan.shape(batch)) if plan.policy else None
    tokens, lengths = np.zeros((batch, capacity), np.int32), np.zeros(batch, np.int32)
    shapes = jax.eval_shape(lambda *arrays: arrays, request, tokens, lengths, control)
    static = {"config": config, "capacity": capacity, "max_tokens": capacity}
    state = jax.eval_shape(functools.partial(prefill, **static), params, *shapes)
    return Program(prefill, (params, *shapes), static, {"cache_bytes": count_held(state)})


def draft_program(**options: Any) -> Program:
    """Make the program that drafts in a round of `decode_loop` of the same options, up to the tree."""
    loop = decode_loop(**options)
    params, request, state, _ = loop.args
    return Program(compile_phase(_draft_tree), (params, request, state), loop.static, loop.facts)


def _draft_tree(round: Round, state: DecodeState) -> Tree:
    noise = round.noise(state.cache.length + 1, round.plan.longest)
    return grow(round, state, draft(round, state, noise))


def count_held(state: DecodeState, devices: int = 1) -> int:
    """Compute the bytes of all caches on a device; `devices` share the target's."""

    def count(tree: Any) -> int:
        return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))

    return count(state.cache) // devices + count(state.draft)


def _make_policy(name: str | None, budget: int, spec: Spec) -> Policy | None:
    """Make BlockPilot with one layer, or a controller; None without a name.

    Weights are 0 and times are 1: the compiled program does not depend on them.
    """
    if name == BLOCKPILOT:
        kernel = np.zeros((spec.target.vocab_size, len(_BLOCKS)), np.float32)
        layer = {"kernel": kernel, "bias": np.zeros(len(_BLOCKS), np.float32)}
        return make_blockpilot(_BLOCKS, Predictor([layer]), widths=(budget,))
    return None if name is None else _make_controller(name, budget)


def _make_controller(rule: str, budget: int) -> Policy:
    known = GPU_WIDTHS if rule == AUTOMATIC else (1, 4, 16, 64, 256)
    widths = (*(width for width in known if width < budget), budget)
    if rule == AUTOMATIC:
        return make_automatic(make_costs(widths, (1,), 1.0, [[1.0]] * len(widths)), False)
    return make_bastion(make_costs(widths, (0, 1024), (1.0, 1.0), [[1.0, 1.0]] * len(widths)), rule)


def describe_call(
    *,
    arch,
    method,
    builder,
    budget,
    acceptance,
    capacity,
    dtype,
    layers,
    policy,
    quantize,
    **sampling,
) -> tuple[Spec, DecodeConfig]:
    """Return the model and the decode call that the options of `decode_loop` describe; ValueError
    if one is out of range.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: choose one of {', '.join(_DTYPES)}")
    check_kind(quantize)
    spec = architecture(arch)
    if method != "ar":
        spec = swap_drafter(spec, method)
    if layers is not None:
        if not 1 <= layers <= spec.target.num_layers:
            raise ValueError(f"layers is {layers}: {arch} has {spec.target.num_layers}")
        spec = _fewer_layers(spec, layers)
    decides = None if method == "ar" else _make_policy(policy, budget, spec)
    tree = (
        {}
        if method == "ar"
        else {
            "builder": builder and make_builder(builder),
            "budget": budget,
            "acceptance": acceptance,
            "policy": decides and decides.config,
        }
    )
    config = DecodeConfig(method, make_sampling(**sampling)[0], **tree)
    plan = make_plan(spec, config)
    least = _PROMPT + max(plan.longest, plan.waiting)
    if capacity < least:
        raise ValueError(f"a cache of {capacity} rows is too small: give at least {least}")
    return spec, config


def _fewer_layers(spec: Spec, layers: int) -> Spec:
    """Cut the target to `layers` layers and the head to at most as many; it reads the last ones."""
    name, head = spec.drafters[0]
    features = tuple(range(layers))[-len(head.feature_layers) :]
    head = dataclasses.replace(
        head, num_layers=min(layers, head.num_layers), feature_layers=features
    )
    return dataclasses.replace(
        spec, target=dataclasses.replace(spec.target, num_layers=layers), drafters=((name, head),)
    )


def compile_decode_loop(
    gpu: str = "h100",
    *,
    part: str = "rounds",
    large: int = 2**23,
    spills: bool = True,
    devices: int = 1,
    **options,
) -> dict[str, Any]:
    """Compile `decode_loop(**options)` for `gpu`, see `pallas_kernels.aot.compile_report`.

    Args:
      part: `rounds`; `draft` for the drafting of a round alone, or `prefill` for the program that
        comes before; `visit` and `feed` for the programs of a serving engine of `batch` slots.
      devices: number of GPUs that share the target, for `rounds` and `prefill`.

    Returns:
      The report, with `part`, `options`, `devices` and, if the program compiles, `cache_bytes`.

    Raises:
      ValueError: an option is out of range.
      ImportError: the CUDA plugin is not installed.
    """
    options = check_call(part=part, devices=devices, **options)
    factory, given = _FACTORIES[part], options
    if devices > 1:
        factory, given = _SHARED[part], options | {"devices": devices}
    compiled = compile_report(f"jaxspec.bench.{factory}", given, gpu, large=large, spills=spills)
    return {"part": part, "options": options, "devices": devices} | compiled


def check_call(*, part: str = "rounds", devices: int = 1, **options: Any) -> dict[str, Any]:
    """Return the options of `compile_decode_loop` with defaults; ValueError if one is out of range."""
    options = {
        name: each.default for name, each in inspect.signature(decode_loop).parameters.items()
    } | options
    check_count("batch", options["batch"])
    check_budget(options["budget"])
    spec, _ = describe_call(**{name: value for name, value in options.items() if name != "batch"})
    if check_count("tp", devices) > 1:
        if part not in _SHARED:
            raise ValueError(f"--tp compiles rounds and prefills, not {part}")
        widen(spec.target, devices)  # refuses numbers that cannot share it
    return options
