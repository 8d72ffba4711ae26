"""The decode calls that `jaxspec aot` compiles: a named architecture, a drafter and its settings."""

from __future__ import annotations

import dataclasses

import numpy as np

from jaxspec.bench.architectures import architecture, swap_drafter
from jaxspec.builders import make_builder
from jaxspec.core.params import Spec
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.learned.blockpilot import Predictor, make_blockpilot
from jaxspec.policies.protocol import Policy
from jaxspec.policies.registry import AUTOMATIC
from jaxspec.round.plan import DecodeConfig, make_plan, suits_lookup
from jaxspec.targets.layouts.quant import INT4, KINDS, check_kind
from jaxspec.tuner.automatic import GPU_WIDTHS, make_automatic

BLOCKPILOT = "blockpilot"
_BLOCKS = (4, 8, 16)
_PROMPT = 64
_DTYPES = ("bfloat16", "float16", "float32")


def describe_call(
    *,
    arch,
    drafter,
    builder,
    budget,
    acceptance,
    capacity,
    dtype,
    layers,
    policy,
    quantize,
    cache_dtype,
    **sampling,
) -> tuple[Spec, DecodeConfig]:
    """Return the model and the decode call that the options of `decode_loop` describe; ValueError
    if one is out of range.
    """
    if dtype not in _DTYPES:
        raise ValueError(f"unknown dtype {dtype!r}: {choose_one(dtype, _DTYPES)}")
    check_kind(quantize, (*KINDS, INT4))
    spec = architecture(arch)
    spec = dataclasses.replace(spec, target=spec.target.with_cache(cache_dtype))
    if drafter != "ar":
        spec = swap_drafter(spec, drafter)
    if layers is not None:
        if not 1 <= layers <= spec.target.num_layers:
            raise ValueError(f"layers is {layers}: {arch} has {spec.target.num_layers}")
        spec = _fewer_layers(spec, layers)
    decides = None if drafter == "ar" else make_policy(policy, budget, spec)
    tree = (
        {}
        if drafter == "ar"
        else {
            "builder": builder and make_builder(builder),
            "budget": budget,
            "acceptance": acceptance,
            "policy": decides and decides.config,
            "lookup": policy == AUTOMATIC and suits_lookup(spec, drafter),
        }
    )
    config = DecodeConfig(drafter, make_sampling(**sampling)[0], **tree)
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
        spec, target=spec.target.take_layers(layers), drafters=((name, head),)
    )


def make_policy(name: str | None, budget: int, spec: Spec) -> Policy | None:
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
        return make_automatic(make_costs(widths, (1,), 1.0, [[1.0]] * len(widths)))
    return make_bastion(make_costs(widths, (0, 1024), (1.0, 1.0), [[1.0, 1.0]] * len(widths)), rule)
