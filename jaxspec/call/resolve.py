"""Resolve the options of a call that decide what is compiled."""

from __future__ import annotations

from jaxspec.builders import Builder, make_builder
from jaxspec.call import arguments
from jaxspec.core.params import Spec
from jaxspec.core.sampling.settings import SamplingValues, make_sampling
from jaxspec.drafters.registry import record_of
from jaxspec.drafters.sizes import choose_depth
from jaxspec.policies.protocol import PolicyConfig
from jaxspec.round.plan import ACCEPTANCE, DecodeConfig

# Rows that a round verifies if neither the caller nor a policy says how many.
BUDGET = 32


def resolve_config(
    spec: Spec,
    *,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    min_p: float | None = None,
    presence_penalty: float = 0.0,
    frequency_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
    method: str | None = None,
    builder: str | Builder | None = None,
    budget: int | None = None,
    block_size: int | None = None,
    depth: int | None = None,
    acceptance: str = "match",
    coupled: bool = True,
    lookup: bool | None = None,
    score_temperature: float | None = None,
    policy: PolicyConfig | None = None,
) -> tuple[DecodeConfig, SamplingValues]:
    """Check the options of `jaxspec.decode` that decide what is compiled.

    Options without an effect here (a `budget` for `ar`) get their default value, so that calls that
    differ only in them share a compilation.

    Returns:
      The static config, and the sampling numbers, which are traced.

    Raises:
      TypeError, ValueError: an option of the wrong type or out of range.
    """
    penalties = presence_penalty, frequency_penalty, repetition_penalty
    sampling, values = make_sampling(temperature, top_k, top_p, min_p, *penalties)
    if method is not None and not isinstance(method, str):
        raise TypeError(f"method is {method!r}: give 'ar', or the name of a loaded drafter")
    method = method or spec.default_method
    arguments.check_choice("acceptance", acceptance, ACCEPTANCE)
    arguments.check_flag("coupled", coupled)
    lookup = lookup is not None and arguments.check_flag("lookup", lookup)
    budget = BUDGET if budget is None else arguments.check_budget(budget)
    if block_size is not None:
        block_size = arguments.check_count("block_size", block_size, 2)
    if depth is not None:
        depth = arguments.check_count("depth", depth)
    if score_temperature is not None:
        score_temperature = arguments.check_positive("score_temperature", score_temperature)
    elif policy is not None:
        score_temperature = policy.score_temperature
    if method == "ar":
        return DecodeConfig(method, sampling), values
    drafter = spec.drafter(method)
    config = DecodeConfig(
        method=method,
        sampling=sampling,
        builder=make_builder(builder or record_of(drafter).default_builder),
        budget=budget,
        depth=choose_depth(drafter, method, depth=depth, block_size=block_size),
        acceptance=acceptance,
        coupled=coupled or acceptance != "match" or sampling.greedy,
        lookup=lookup and not record_of(drafter).retrieval,
        score_temperature=score_temperature,
        policy=policy,
    )
    return config, values
