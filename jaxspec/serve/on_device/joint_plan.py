"""The drafters of an engine: one, or several that draft side by side.

An engine of several drafters has a tuple of configs instead of one. Requests share the target, its
cache and the rows of a round; each drafter has its own config, plan and state.
"""

from __future__ import annotations

import functools
from typing import Any, TypeAlias

from jaxspec.core.params import Spec
from jaxspec.round.plan import DecodeConfig, Plan, make_plan

Config: TypeAlias = DecodeConfig | tuple[DecodeConfig, ...]
"""The config of an engine's drafter, or of each of several; the first is the default one's."""


def list_configs(config: Config) -> tuple[DecodeConfig, ...]:
    """Return the configs of all drafters, or that of `ar`."""
    return config if isinstance(config, tuple) else (config,)


@functools.lru_cache(maxsize=256)
def join_plans(spec: Spec, config: Config) -> Plan:
    """Return the plan of what rounds do for all slots alike: verify, commit, and keep a queue.

    It is the drafter's own; of several, it has the sizes of the largest and the feature layers of
    all, and does not draft.

    Raises:
      ValueError: a drafter of several has no room for a drafted token.
    """
    plans = [make_plan(spec, one) for one in list_configs(config)]
    if len(plans) == 1:
        return plans[0]
    drafters = [plan.drafter for plan in plans if plan.drafter is not None]
    if len(drafters) < len(plans):
        raise ValueError(
            "several drafters need a budget of at least 2 rows: give more, or one name"
        )
    layers = dict.fromkeys(layer for drafter in drafters for layer in drafter.feature_layers)
    return plans[0]._replace(
        drafter=drafters[0]._replace(feature_layers=tuple(layers)),
        widths=(max(plan.widths[-1] for plan in plans),),
        longest=max(plan.longest for plan in plans),
    )


def init_drafts(spec: Spec, config: Config, batch: int, capacity: int, dtype: Any) -> Any:
    """Make the drafter's state of `batch` empty sequences; a tuple of states of several drafters.

    None without a drafter.
    """
    drafters = [make_plan(spec, one).drafter for one in list_configs(config)]
    made = [one.init(batch, capacity, dtype) if one else None for one in drafters]
    return tuple(made) if isinstance(config, tuple) else made[0]
