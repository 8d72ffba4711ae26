"""The automatic policy: choose the rows of every round by cost, without calibration by hand.

It is BASTION's controller with the rule `best`. Its round costs are probed with the program that
decodes, when that is first compiled for a device, model, drafter and setting, and corrected after
every decode. They are kept on disk. What a process learns about acceptance is kept for its later
calls. Like every policy, it changes the speed and never the text.
"""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path
from typing import Any

import jax
import numpy as np

from jaxspec.call.kept_costs import describe_model, find_kept
from jaxspec.core.params import Params
from jaxspec.costs.files import encode_costs, load_costs, to_text
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.costs.row_costs import RowCosts
from jaxspec.io.user_cache import keep
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.protocol import Policy
from jaxspec.round.plan import DecodeConfig, make_plan
from jaxspec.targets.layouts.copies import COPIES
from jaxspec.targets.layouts.registry import find_layout, some_weight, strip

# Numbers of rows that rounds verify, and that verification is compiled for. On a CPU every row of a
# large target costs, and more than 4 seldom pay; a small one spends its rounds on what does not
# depend on the rows. Sampling draws noise for every row, and a fourth row is then seldom accepted; a
# product with a transposed matrix takes no longer for 4 rows than for 3. On a GPU up to 64 rows cost
# little more than one.
CPU_WIDTHS, SMALL_CPU_WIDTHS, SAMPLED_CPU_WIDTHS = (1, 4), (1, 4, 8), (1, 3)
GPU_WIDTHS = (1, 16, 32, 64)
# Bytes of weights up to which a target is small: those that caches of processors hold.
SMALL = 64 * 2**20
# Weight of a decode's measured time in the correction of the costs.
RATE = 0.2
# Change of a kind of round's logarithmic cost, relative to a plain round's, from which on corrected
# costs replace those on disk.
CHANGE = 0.05

# Learned policies by setting, each with a weak reference to an array of its drafter's weights.
_learned: dict[str, tuple[weakref.ref, Policy]] = {}
# What the kinds of rounds of a setting cost relative to plain ones, as the file on disk has it.
_on_disk: dict[str, np.ndarray] = {}


def choose_widths(params: Params, budget: int | None, greedy: bool) -> tuple[int, ...]:
    """Choose the numbers of rows of rounds on the default device.

    Args:
      params: the model.
      budget: the largest; None: what suits the device and the model.
      greedy: whether the call decodes greedily.
    """
    widths = GPU_WIDTHS
    if jax.default_backend() == "cpu":
        weights = jax.tree.leaves(strip(params.target))
        size = sum(weight.size * weight.dtype.itemsize for weight in weights)
        widths = SMALL_CPU_WIDTHS if size <= SMALL else CPU_WIDTHS
        if not greedy:
            transposed = find_layout(params.target) is COPIES[1]
            widths = CPU_WIDTHS if transposed else SAMPLED_CPU_WIDTHS
    return widths if budget is None else (*(w for w in widths if w < budget), budget)


def make_automatic(costs: RoundCosts) -> Policy:
    """Make the policy with these costs.

    A round that drafted never verifies a single row. It would gain little, and take the time that its
    program takes to compile.
    """
    policy = make_bastion(costs, rate=RATE)
    if len(costs.widths) == 1:
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
    if config.drafter == "ar":
        return None, config
    widths = choose_widths(params, budget, config.sampling.greedy)
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
        if reference() is some_weight(_variables(params, config.drafter)):
            return policy
    try:
        costs = load_costs(key)
        _on_disk[key] = _relative(costs.by_rows())
    except (OSError, ValueError):  # none are kept, or the file is damaged: probe again
        costs = _placeholder(widths)
    return make_automatic(costs)


def remember_policy(params: Params, config: DecodeConfig, batch: int, policy: Policy) -> None:
    """Remember what a call learned, for later calls of this process.

    Costs that it corrected are kept on disk, for other processes.
    """
    weight = weakref.ref(some_weight(_variables(params, config.drafter)))
    key = name_setting(params, config, batch)
    _learned[key] = (weight, policy)
    costs = policy.controls.costs
    known = _on_disk.get(key)
    if known is not None and np.abs(np.log(_relative(costs) / known)).max() > CHANGE:
        _save(make_costs(costs.widths, costs.contexts, costs.draft, costs.verify), Path(key))


def save_setting(params: Params, config: DecodeConfig, batch: int, costs: RoundCosts) -> Policy:
    """Keep measured costs on disk, and return a policy with them."""
    _save(costs, _kept(params, config, batch))
    return make_automatic(costs)


def _save(costs: RoundCosts, path: Path) -> None:
    keep(path, to_text(encode_costs(costs)))
    _on_disk[str(path)] = _relative(costs.by_rows())


def _relative(costs: RowCosts) -> np.ndarray:
    """Return what kinds of rounds cost relative to autoregressive ones: float64 [W, K]."""
    whole = costs.rounds()
    return whole[1:] / whole[:1]


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
    model = describe_model(params, config.drafter)
    widths = choose_widths(params, config.budget, config.sampling.greedy)
    setting = dataclasses.replace(config, policy=None, evidence=0)
    return find_kept(config.drafter, *model, setting, widths, batch)


def _variables(params: Params, method: str) -> Any:
    """Return the variables of a drafter, or the target's if it has none."""
    return params.drafters.get(method) or params.target
