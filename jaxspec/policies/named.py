"""Policies by name, as the command line takes them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.costs.round_costs import RoundCosts
from jaxspec.policies.protocol import Policy
from jaxspec.policies.registry import find_named, policy_forms
from jaxspec.policies.store import HEADER, load_policy


def make_named(
    name: str, costs: Callable[[], RoundCosts], about: Mapping[str, Any] | None = None
) -> Policy:
    """Make the policy of a name.

    Args:
      name: one of `policy_forms()`, for example `best`, `ddd-paper` or `static:4x24` (4 draft steps
        and 24 rows in every round), or the folder of a saved policy.
      costs: returns the round costs, and measures them if necessary; called only for policies that
        are made from costs.
      about: describes the use of the policy, see `store.load_policy`.

    Raises:
      ValueError: there is no policy of this name.
    """
    found = find_named(name)
    if found is not None:
        (make, by_costs, _), argument = found
        return make(*((costs(),) if by_costs else ()), *((argument,) if argument else ()))
    check_policy(name)
    return load_policy(Path(name).expanduser(), about=about)


def check_policy(name: str) -> None:
    """Raise a ValueError unless `name` is a policy's name or the folder of a saved one."""
    if find_named(name) is None and not (Path(name).expanduser() / HEADER).is_file():
        raise ValueError(
            f"unknown policy {name!r}: {choose_one(name, policy_forms())}, "
            "or give the folder of a saved one"
        )
