"""The automatic policy: choose the rows of every round by cost, without calibration by hand.

It is BASTION's controller with the rule `best`. Its round costs are probed with the program that
decodes, when that is first compiled for a device, model, drafter and setting. They are kept on
disk.

In float32 they are corrected after every decode, and what a process learns about acceptance is kept
for its later calls: rows change no text there. In shorter floats the rows of a round change
roundings, so a steady policy begins every call anew, with costs that nothing but
`jaxspec calibrate` replaces.
"""

from __future__ import annotations

import dataclasses
import weakref
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from jaxspec.core.params import Params
from jaxspec.costs.files import encode_costs, load_costs, to_text
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.costs.row_costs import RowCosts
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.protocol import Policy
from jaxspec.round.plan import DecodeConfig, make_plan
from jaxspec.targets.layouts.copies import COPIES
from jaxspec.targets.layouts.registry import find_layout, some_weight, strip
from jaxspec.tuner.store import Store, describe_model

# Numbers of rows that rounds verify, and that verification is compiled for. On a CPU every row of a
# large target costs, and more than 4 seldom pay; a small one spends its rounds on what does not
# depend on the rows. Sampling draws noise for every row, and a fourth row is then seldom accepted;
# a product with a transposed matrix takes no longer for 4 rows than for 3. On a GPU up to 64 rows
# cost little more than one.
CPU_WIDTHS, SMALL_CPU_WIDTHS, SAMPLED_CPU_WIDTHS = (1, 4), (1, 4, 8), (1, 3)
GPU_WIDTHS = (1, 16, 32, 64)
# Bytes of weights up to which a target is small: those that caches of processors hold.
SMALL = 64 * 2**20
# Weight of a decode's measured time in the correction of the costs.
RATE = 0.2
# Change of a kind of round's logarithmic cost, relative to a plain round's, from which on corrected
# costs replace those on disk.
CHANGE = 0.05


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


def make_automatic(costs: RoundCosts, rate: float = RATE) -> Policy:
    """Make the policy with these costs.

    A round that drafted never verifies a single row. It would gain little, and take the time that
    its program takes to compile.

    Args:
      rate: weight of measured times in the correction of the costs.
    """
    policy = make_bastion(costs, rate=rate)
    if len(costs.widths) == 1:
        return policy
    return policy.replace(config=dataclasses.replace(policy.config, widths=costs.widths[1:]))


class Recalled(NamedTuple):
    """What a tuner knows of a call.

    Attributes:
      policy: None where no policy can decide.
      config: the call's static settings with it.
      path: the file of the costs of its rounds; None without a policy.
    """

    policy: Policy | None
    config: DecodeConfig
    path: Path | None = None


class AutomaticPolicies:
    """The automatic policies of settings, with what they learned."""

    def __init__(self, store: Store):
        self._store = store
        # Learned policies, each with a weak reference to an array of its drafter's weights.
        self._learned: dict[str, tuple[weakref.ref, Policy]] = {}
        # What the kinds of rounds cost relative to plain ones, as the file on disk has it.
        self._on_disk: dict[str, np.ndarray] = {}
        # Costs of steady policies, which stay as they are.
        self._steady: dict[str, RoundCosts] = {}

    def recall(
        self, params: Params, config: DecodeConfig, budget: int | None, batch: int, steady: bool
    ) -> Recalled:
        """Return the policy for a call, the call's settings with it, and the file of its costs.

        Args:
          params: the model.
          config: the call's static settings, without a policy.
          budget: most rows of a round; None: what suits the device.
          batch: number of sequences.
          steady: leave out what was learned.

        Returns:
          The policy of this process's last such call; else a new one with the costs that are kept
          on disk; else one with placeholder costs, for which `is_probed` is False. It is None where
          no policy can decide: for `ar`, for trees in an order of their own, and for rejection
          sampling; or where costs can be neither found nor measured.
        """
        if config.drafter == "ar":
            return Recalled(None, config)
        widths = choose_widths(params, budget, config.sampling.greedy)
        fixed, config = config, dataclasses.replace(config, budget=widths[-1])
        path = self.find_path(params, config, batch)
        policy = self._find(path, params, config.drafter, widths, steady)
        chosen = dataclasses.replace(config, policy=policy.config)
        try:
            make_plan(params.spec, chosen)
        except ValueError:
            return Recalled(None, fixed)
        if self._store.frozen and not is_probed(policy):
            return Recalled(None, config)
        return Recalled(policy, chosen, path)

    def remember(self, path: Path, params: Params, drafter: str, policy: Policy) -> None:
        """Remember what a call learned, for later calls of this process.

        Costs that it corrected are kept on disk, for other processes.

        Args:
          path: the file of its costs, see `recall`.
        """
        weight = weakref.ref(some_weight(_variables(params, drafter)))
        self._learned[str(path)] = (weight, policy)
        costs = policy.controls.costs
        known = self._on_disk.get(str(path))
        if known is not None and np.abs(np.log(_relative(costs) / known)).max() > CHANGE:
            kept = make_costs(costs.widths, costs.contexts, costs.draft, costs.verify)
            self._write(path, kept)

    def keep(self, path: Path, costs: RoundCosts, steady: bool, anew: bool = False) -> Policy:
        """Keep measured costs on disk, and return a policy with them.

        Args:
          path: their file, see `recall`.
          steady: of several processes that measured, the costs of the first to write count.
          anew: they replace all others, those in memory too.
        """
        if anew:
            self._learned.pop(str(path), None)
            self._steady.pop(str(path), None)
        damaged = path.exists() and _read(path) is None
        if not steady or anew or damaged:
            self._write(path, costs)
        if not steady:
            return make_automatic(costs)
        self._store.write_first(path, to_text(encode_costs(costs)))
        # What cannot be kept on disk stays in memory.
        return make_automatic(
            self._read_steady(path) or self._steady.setdefault(str(path), costs), 0
        )

    def find_path(self, params: Params, config: DecodeConfig, batch: int) -> Path:
        """Return the file of the costs of a setting, which also names it within this process."""
        model = describe_model(params, config.drafter)
        widths = choose_widths(params, config.budget, config.sampling.greedy)
        setting = dataclasses.replace(config, policy=None, evidence=0)
        return self._store.find(config.drafter, *model, setting, widths, batch)

    def _find(
        self, path: Path, params: Params, drafter: str, widths: tuple[int, ...], steady: bool
    ) -> Policy:
        if steady:
            costs = self._read_steady(path)
            return make_automatic(_placeholder(widths) if costs is None else costs, 0)
        if str(path) in self._learned:
            reference, policy = self._learned[str(path)]
            if reference() is some_weight(_variables(params, drafter)):
                return policy
        costs = _read(path)
        if costs is None:
            return make_automatic(_placeholder(widths))
        self._on_disk[str(path)] = _relative(costs.by_rows())
        return make_automatic(costs)

    def _read_steady(self, path: Path) -> RoundCosts | None:
        """Read costs from disk once; later calls of this process have the same ones."""
        if str(path) not in self._steady:
            costs = _read(path)
            if costs is None:
                return None
            self._steady[str(path)] = costs
        return self._steady[str(path)]

    def _write(self, path: Path, costs: RoundCosts) -> None:
        self._store.write(path, to_text(encode_costs(costs)))
        self._on_disk[str(path)] = _relative(costs.by_rows())


def _read(path: Path) -> RoundCosts | None:
    """Read costs; None if none are kept, or the file is damaged."""
    try:
        return load_costs(path)
    except (OSError, ValueError):
        return None


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


def _variables(params: Params, drafter: str) -> Any:
    """Return the variables of a drafter, or the target's if it has none."""
    return params.drafters.get(drafter) or params.target
