"""The automatic policy: choose the rows of every round by cost, without calibration by hand.

It is BASTION's controller with the rule `best`. Its round costs are probed with the program that
decodes, when that is first compiled for a device, model, drafter and setting. They are kept on
disk, and corrected after every decode. What a process learns about acceptance is kept for its later
calls. Like every policy, it changes the speed and never the text.
"""

from __future__ import annotations

import contextlib
import dataclasses
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.core.params import Params
from jaxspec.costs.files import load_costs, save_costs
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.engine.kept_costs import describe_model, find_kept
from jaxspec.engine.plan import DecodeConfig, make_plan
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.protocol import Policy
from jaxspec.targets.panels import COLLECTION, some_weight

# Numbers of rows that rounds verify, and that verification is compiled for. With panels
# (`jaxspec.targets.panels`) 4 rows of a CPU cost little more than one, and 8 twice as much; without,
# 8 cost little more than 2. Sampling draws noise for every row, and a fourth row is then seldom
# accepted. On a GPU up to 64 rows cost little more than one.
PANEL_WIDTHS, SAMPLED_PANEL_WIDTHS = (1, 4), (1, 3)
CPU_WIDTHS, GPU_WIDTHS = (1, 8), (1, 16, 32, 64)
# Weight of a decode's measured time in the correction of the costs.
RATE = 0.2

# Learned policies by setting, each with a weak reference to an array of its drafter's weights.
_learned: dict[str, tuple[weakref.ref, Policy]] = {}


def choose_widths(budget: int | None, panels: bool, greedy: bool) -> tuple[int, ...]:
    """Choose the numbers of rows of rounds on the default device.

    Args:
      budget: the largest; None: what suits the device.
      panels: whether the weights have panels.
      greedy: whether the call decodes greedily.
    """
    if panels:
        widths = PANEL_WIDTHS if greedy else SAMPLED_PANEL_WIDTHS
    else:
        widths = CPU_WIDTHS if jax.default_backend() == "cpu" else GPU_WIDTHS
    return widths if budget is None else (*(w for w in widths if w < budget), budget)


def make_automatic(costs: RoundCosts, verifies_one: bool) -> Policy:
    """Make the policy with these costs.

    Args:
      verifies_one: whether a round that drafted may verify a single row. Where a few rows take as
        long as one, that saves nothing, and leaving it out saves its compilation.
    """
    policy = make_bastion(costs, rate=RATE)
    if verifies_one or len(costs.widths) == 1:
        return policy
    return policy.replace(config=dataclasses.replace(policy.config, widths=costs.widths[1:]))


def recall_policy(
    params: Params, config: DecodeConfig, budget: int | None, batch: int
) -> tuple[Policy | None, DecodeConfig]:
    """Return the policy for a call, and the call's settings with it.

    Args:
      params: the model.
      config: the call's static settings, without a policy.
      budget: most rows of a round; None: what suits the device.
      batch: number of sequences.

    Returns:
      The policy of this process's last such call; else a new one with the costs that are kept on
      disk; else one with placeholder costs, for which `is_probed` is False. It is None where no
      policy can decide: for `ar`, for trees in an order of their own, and for rejection sampling.
    """
    if config.method == "ar":
        return None, config
    widths = choose_widths(budget, _have_panels(params), config.sampling.greedy)
    fixed, config = config, dataclasses.replace(config, budget=widths[-1])
    policy = _find_policy(params, config, batch, widths)
    config = dataclasses.replace(config, policy=policy.config)
    try:
        make_plan(params.spec, config)
    except ValueError:
        return None, fixed
    return policy, config


def _find_policy(
    params: Params, config: DecodeConfig, batch: int, widths: tuple[int, ...]
) -> Policy:
    key = name_setting(params, config, batch)
    if key in _learned:
        reference, policy = _learned[key]
        if reference() is some_weight(_variables(params, config.method)):
            return policy
    try:
        costs = load_costs(key)
    except (OSError, ValueError):  # none are kept, or the file is damaged: probe again
        costs = _placeholder(widths)
    return make_automatic(costs, _verifies_one(params))


def remember_policy(params: Params, config: DecodeConfig, batch: int, policy: Policy) -> None:
    """Remember what a call learned, for later calls of this process."""
    weight = weakref.ref(some_weight(_variables(params, config.method)))
    _learned[name_setting(params, config, batch)] = (weight, policy)


def save_setting(params: Params, config: DecodeConfig, batch: int, costs: RoundCosts) -> Policy:
    """Keep measured costs on disk, and return a policy with them."""
    # A cache that cannot be written costs a probe per process, and nothing else.
    with contextlib.suppress(OSError):
        save_costs(costs, _kept(params, config, batch))
    return make_automatic(costs, _verifies_one(params))


def is_probed(policy: Policy) -> bool:
    """Whether a policy's costs were measured, and are no placeholder."""
    return bool(np.asarray(policy.controls.costs.contexts)[0] > 0)


def _placeholder(widths: tuple[int, ...]) -> RoundCosts:
    """Make costs that mark themselves as not measured by a context of 0 tokens."""
    return make_costs(widths, (0.0,), 0.0, [[1.0]] * len(widths))


def name_setting(params: Params, config: DecodeConfig, batch: int) -> str:
    """Name what the costs of rounds depend on, within this process."""
    return str(_kept(params, config, batch))


def _kept(params: Params, config: DecodeConfig, batch: int) -> Path:
    """Return the file of the costs of a setting."""
    model = describe_model(params, config.method)
    widths = choose_widths(config.budget, _have_panels(params), config.sampling.greedy)
    setting = dataclasses.replace(config, policy=None, evidence=0)
    return find_kept(config.method, *model, setting, widths, batch)


def _verifies_one(params: Params) -> bool:
    return jax.default_backend() == "cpu" and not _have_panels(params)


def _have_panels(params: Params) -> bool:
    return COLLECTION in params.target


def _variables(params: Params, method: str) -> Any:
    """Return the variables of a drafter, or the target's if it has none."""
    return params.drafters.get(method) or params.target
