"""Measure what rounds of a drafter cost on this machine, by rows verified and cached tokens.

The rounds are those of the decode loop itself, compiled once with a policy of fixed size, so
BASTION's controller calculates with measured times. Tables are kept on disk, one for each device,
model, drafter and setting.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders import Builder, make_builder
from jaxspec.core.params import Params
from jaxspec.costs.files import load_costs, save_costs
from jaxspec.costs.round_costs import RoundCosts, make_costs
from jaxspec.costs.row_costs import split_rounds
from jaxspec.drafters.registry import default_builder
from jaxspec.io.fingerprint import fingerprint
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.named import make_named
from jaxspec.policies.protocol import Policy
from jaxspec.tuner.calibrate.round_clock import Case, plan_rounds, time_rounds
from jaxspec.tuner.store import Store, describe_model

# Options of `jaxspec.decode` that sampling depends on, and all options that the time of a round
# depends on.
SAMPLING = ("temperature", "top_k", "top_p", "min_p")
TIMED = ("builder", "budget", *SAMPLING, "block_size", "depth")
# A saved policy keeps the fingerprint of its round costs under this name.
ROW_COSTS = "round costs by rows"


def default_widths(budget: int) -> tuple[int, ...]:
    """Return the widths to compile verification for: powers of two below `budget`, and `budget`."""
    return (*(1 << i for i in range((budget - 1).bit_length())), budget)


def calibrate(
    params: Params,
    drafter: str,
    *,
    budget: int = 32,
    widths: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    batch: int = 1,
    repeats: int = 9,
    **options: Any,
) -> RoundCosts:
    """Measure median times of rounds, by rows verified and cached tokens.

    Args:
      drafter: a drafter's name.
      budget: rows of the largest tree.
      widths: rows to compile verification for, including 1 and `budget` (None: powers of two).
      contexts: numbers of cached tokens (None: 64, 256, 1,024, … up to the model's positions).
      batch: number of sequences decoded together.
      repeats: samples of each time.
      options: keyword arguments of `jaxspec.decode` for these rounds: builder, temperature and so
        on.

    Raises:
      ValueError: `ar`, a size out of range, or a context beyond the model's positions.
    """
    widths = default_widths(budget) if widths is None else tuple(widths)
    if widths[0] != 1 or widths[-1] != budget:
        raise ValueError(
            f"widths are {list(widths)}: give them in ascending order, from 1 to the budget, "
            f"{budget}"
        )
    # Any positive times work: the size is fixed, so they decide nothing.
    policy = make_bastion(make_costs(widths, (0.0,), 1.0, [[1.0]] * len(widths)))
    options = {"drafter": drafter, "budget": budget, "policy": policy, **options}
    if plan_rounds(params, options).policy is None:
        raise ValueError(
            f"drafter {drafter!r} with a budget of {budget} drafts nothing: there is nothing to "
            "choose"
        )
    cases = [Case(options, policy.controls.replace(rows=jnp.int32(size))) for size in (-1, *widths)]
    contexts, seconds = time_rounds(params, cases, contexts, repeats=repeats, batch=batch)
    plain, *drafted = np.transpose(seconds)
    return make_costs(widths, contexts, *split_rounds(plain, drafted))


def table_path(
    params: Params, drafter: str, *, budget: int = 32, batch: int = 1, **options: Any
) -> Path:
    """Return the path of the file with the costs of these rounds, see `jaxspec.tuner.store`."""
    options["builder"] = str(_builder(params, drafter, options))
    model = describe_model(params, drafter)
    return Store().find(drafter, *model, budget, batch, sorted(options.items()))


def timed(options: Mapping[str, Any]) -> dict[str, Any]:
    """Select the options that the time of a round depends on, for `measured`. Options that are None
    have their default and are left out.
    """
    return {name: options[name] for name in TIMED if options.get(name) is not None}


def about(params: Params, drafter: str, options: Mapping[str, Any]) -> dict[str, str]:
    """Describe what a policy is made for: target, drafter, builder and device. The description is
    saved with the policy, see `jaxspec.policies.store`.

    Args:
      options: keyword arguments of `jaxspec.decode`.
    """
    return {
        "target": _target(params),
        "drafter": drafter,
        "builder": _builder(params, drafter, options).name,
        "device": jax.devices()[0].device_kind,
    }


def _builder(params: Params, drafter: str, options: Mapping[str, Any]) -> Builder:
    """Return the builder that `options` name in any spelling, or the drafter's default."""
    return make_builder(options.get("builder") or default_builder(params.spec.drafter(drafter)))


def _target(params: Params) -> str:
    """Identify a target by its sizes and the weights of its norms. These are small, differ between
    models, and are never quantised.
    """
    leaves = jax.tree_util.tree_leaves_with_path(params.target["params"])
    # Rounded, so that a model has the same name in every dtype.
    norms = [
        leaf.astype(jnp.bfloat16)
        for path, leaf in leaves
        if getattr(path[-1], "key", None) == "scale"
    ]
    sizes = params.spec.target
    return f"{sizes.family} of {sizes.num_layers} layers, {sizes.hidden_size} wide, {fingerprint(norms)}"


def policy_for(
    params: Params,
    drafter: str,
    name: str,
    options: Mapping[str, Any],
    made_with: Mapping[str, Any] | None = None,
) -> Policy:
    """Make the policy of a name, see `jaxspec.policies.named.make_named`. If it needs round costs
    and none are kept, they are measured now.

    The description saved with a policy is compared with the current target, drafter, builder and
    device, and with the round costs that are kept, if any.

    Args:
      options: keyword arguments of `jaxspec.decode`.
      made_with: further entries to compare with the saved ones.

    Raises:
      ValueError: there is no policy of this name.
    """
    path = table_path(params, drafter, **timed(options))
    kept = {ROW_COSTS: load_costs(path).fingerprint} if path.is_file() else {}
    use = about(params, drafter, options) | kept | (made_with or {})
    return make_named(name, lambda: measured(params, drafter, **timed(options)), use)


def measured(
    params: Params,
    drafter: str,
    *,
    widths: Sequence[int] | None = None,
    contexts: Sequence[int] | None = None,
    repeats: int | None = None,
    **options: Any,
) -> RoundCosts:
    """Return the table at `table_path`; arguments as for `calibrate`.

    It is measured and kept if it does not exist, or if the caller specifies the measurement.
    """
    sizes = {"widths": widths, "contexts": contexts, "repeats": repeats}
    sizes = {name: value for name, value in sizes.items() if value is not None}
    path = table_path(params, drafter, **options)
    if path.is_file() and not sizes:
        return load_costs(path)
    return keep_costs(params, drafter, calibrate(params, drafter, **sizes, **options), **options)


def keep_costs(params: Params, drafter: str, costs: RoundCosts, **options: Any) -> RoundCosts:
    """Keep costs at `table_path`, in place of others. Returns them with a full description.

    Args:
      options: as for `calibrate`, without those of the measurement.
    """
    device = {"device": jax.devices()[0].device_kind, "jax": jax.__version__, "drafter": drafter}
    described = {name: str(value) for name, value in (device | options).items()}
    costs = dataclasses.replace(costs, about=described | costs.about)
    save_costs(costs, table_path(params, drafter, **options))
    return costs
