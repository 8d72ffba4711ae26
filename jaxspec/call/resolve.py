"""Resolve the options of a call that decide what is compiled."""

from __future__ import annotations

from jaxspec.builders import make_builder
from jaxspec.call.options import Sampling, Speculation
from jaxspec.core.params import Spec
from jaxspec.core.sampling.settings import SamplingValues
from jaxspec.drafters.registry import default_builder, record_of
from jaxspec.drafters.sizes import choose_depth
from jaxspec.policies.protocol import Policy
from jaxspec.round.plan import DecodeConfig

# Rows that a round verifies if neither the caller nor a policy says how many.
BUDGET = 32


def resolve_config(
    spec: Spec,
    *,
    drafter: str | None = None,
    sampling: Sampling | None = None,
    speculation: Speculation | None = None,
) -> tuple[DecodeConfig, SamplingValues]:
    """Resolve the options of `jaxspec.decode` that decide what is compiled.

    Options without an effect here (a `budget` for `ar`) get their default value, so that calls that
    differ only in them share a compilation.

    Returns:
      The static config, and the sampling numbers, which are traced.

    Raises:
      TypeError, ValueError: an unknown drafter, or an option that does not suit it.
    """
    drawn, values = (sampling or Sampling()).split()
    given = speculation or Speculation()
    if drafter is not None and not isinstance(drafter, str):
        raise TypeError(f"drafter is {drafter!r}: give 'ar', or the name of a loaded drafter")
    drafter = drafter or spec.default_drafter
    if drafter == "ar":
        return DecodeConfig(drafter, drawn), values
    own = spec.drafter(drafter)
    policy = given.policy.config if isinstance(given.policy, Policy) else None
    score_temperature = given.score_temperature
    if score_temperature is None and policy is not None:
        score_temperature = policy.score_temperature
    config = DecodeConfig(
        drafter=drafter,
        sampling=drawn,
        builder=make_builder(given.builder or default_builder(own)),
        budget=BUDGET if given.budget is None else given.budget,
        depth=choose_depth(own, drafter, depth=given.depth, block_size=given.block_size),
        acceptance=given.acceptance,
        coupled=given.coupled or given.acceptance != "match" or drawn.greedy,
        lookup=False if record_of(own).retrieval else given.lookup or False,
        score_temperature=score_temperature,
        policy=policy,
    )
    return config, values
