"""Compose policies, for example the block size from one policy and the rows from another."""

from __future__ import annotations

import dataclasses
import functools

import jax

from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, RoundShape
from jaxspec.policies.registry import tagged


@tagged("composed")
@dataclasses.dataclass(frozen=True)
class ComposedConfig(PolicyConfig):
    """Config of a composed policy.

    Attributes:
      parts: configs of the policies; the first part that has an act decides it.
      score_scale: that of the parts that have one.
    """

    parts: tuple[PolicyConfig, ...] = ()
    score_scale: float | None = dataclasses.field(default=None, kw_only=True)

    def __post_init__(self):
        scales = {one.score_scale for one in self.parts} - {None}
        if len(scales) > 1:
            raise ValueError(
                f"the policies read scores at the scales {' and '.join(map(str, sorted(scales)))}: "
                "compose policies of one scale, or train one of them again"
            )
        object.__setattr__(self, "score_scale", next(iter(scales), None))

    def functions(self) -> Functions:
        return _functions(self)

    def check(self, shape):
        for part in self.parts:
            part.check(shape)

    def observe_seconds(self, controls, before, after, seconds):
        own = zip(self.parts, controls, before, after, strict=True)
        return tuple(part.observe_seconds(*rest, seconds) for part, *rest in own)


def compose(*policies: Policy) -> Policy:
    """Make one policy of several: the first that has an act decides it; all observe every round.

    The first policy that names a score temperature sets it. If one wants the time of each round,
    all are told.

    Raises:
      ValueError: there are no policies, a policy would never be asked, or widths differ.
    """
    config = tuple(policy.config for policy in policies)
    widths = dict.fromkeys(one.widths for one in config if one.widths)
    if len(widths) > 1:
        raise ValueError(
            f"the policies' widths differ, {' and '.join(map(str, widths))}: "
            "give all of them the same"
        )
    taken = set()
    for one in config:
        acts = {name for name, act in one.functions().act._asdict().items() if act is not None}
        if acts <= taken:
            raise ValueError(
                f"{type(one).__name__} would never be asked: policies before it decide "
                f"{', '.join(sorted(acts))}"
            )
        taken |= acts
    if not config:
        raise ValueError("there is nothing to compose: give at least one policy")
    controls = tuple(policy.controls for policy in policies)
    scales = (one.score_temperature for one in config)
    composed = ComposedConfig(
        next(iter(widths), ()),
        config,
        score_temperature=next((scale for scale in scales if scale is not None), None),
        each_round=any(one.each_round for one in config),
    )
    return Policy(
        composed,
        controls,
        _states(policies),
        _temperature(policies),
    )


def _states(policies) -> tuple | None:
    """Collect the states of all policies; None if none has learned anything."""
    if all(policy.state is None for policy in policies):
        return None
    return tuple(_empty(policy) if policy.state is None else policy.state for policy in policies)


def _temperature(policies) -> float | None:
    """Return the sampling temperature at which the policies learned; None if none has learned."""
    found = {
        policy.temperature
        for policy in policies
        if policy.state is not None and policy.temperature is not None
    }
    if len(found) > 1:
        raise ValueError(
            f"the policies have learned at temperatures {' and '.join(map(str, found))}: "
            "use both at one first"
        )
    return next(iter(found), None)


def _empty(policy: Policy):
    state = policy.config.functions().init(RoundShape(1, 1, 1))
    if jax.tree.leaves(state):
        name = type(policy.config).__name__
        raise ValueError(
            f"{name} has learned nothing yet, and another policy has: "
            "compose before either is used, or after both"
        )
    return state


@functools.lru_cache
def _functions(config: ComposedConfig) -> Functions:
    parts = [one.functions() for one in config.parts]

    def act(name):
        for i, part in enumerate(parts):
            own = getattr(part.act, name)
            if own is not None:
                return lambda controls, state, seen: own(controls[i], state[i], shown(i, seen))
        return None

    def shown(i, seen):
        """Show a part without a scale the scores of the tree."""
        return seen if config.parts[i].score_scale or seen.built is None else seen.built

    def observe(controls, state, outcome):
        each = enumerate(zip(parts, controls, state, strict=True))
        return tuple(part.observe(*own, shown(i, outcome)) for i, (part, *own) in each)

    return Functions(
        lambda shape: tuple(part.init(shape) for part in parts),
        Acts(**{name: act(name) for name in Acts._fields}),
        observe,
        frozenset().union(*(part.needs for part in parts)),
        lambda state: tuple(part.resume(own) for part, own in zip(parts, state, strict=True)),
        next((part.blocks for part in parts if part.act.block is not None), ()),
    )
