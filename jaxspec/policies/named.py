"""Policies by name, as the command line takes them."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from jaxspec.costs.latency_table import LatencyTable
from jaxspec.policies.bastion.controller import make_policy
from jaxspec.policies.bastion.rules import RULES
from jaxspec.policies.controls.static_size import make_static
from jaxspec.policies.protocol import Policy
from jaxspec.policies.store import HEADER, load_policy
from jaxspec.policies.thresholds import ddd, gammatune, svip

# Rules that nothing has to be trained for.
_UNTRAINED = (
    (ddd.PRESETS, ddd.make_ddd),
    (svip.PRESETS, svip.make_svip),
    (gammatune.PRESETS, gammatune.make_gammatune),
)
PRESETS = {
    name: (make, constants) for presets, make in _UNTRAINED for name, constants in presets.items()
}
NAMES = (*RULES, *PRESETS)
_STATIC = re.compile(r"static:(\d+)?x(\d+)?", re.ASCII)


def make_named(
    name: str, times: Callable[[], LatencyTable], about: Mapping[str, Any] | None = None
) -> Policy:
    """The policy that a name stands for.

    Args:
      name: a rule over measured round times (`best`, `bastion-paper`, `bastion-code`), a preset of
        DDD, SVIP or GammaTune, `static:4x24` for 4 draft steps and 24 rows in every round (either
        may be left out), or the folder of a saved policy.
      times: gives the round times, measuring them where they are not known; called for rules only.
      about: what the policy is to be used for, see `store.load_policy`.

    Raises:
      ValueError: none of these.
    """
    if name in RULES:
        return make_policy(times(), name)
    if name in PRESETS:
        make, constants = PRESETS[name]
        return make(**constants)
    static = _STATIC.fullmatch(name)
    if static and name != "static:x":
        return make_static(*(int(number) if number else None for number in static.groups()))
    if (Path(name).expanduser() / HEADER).is_file():
        return load_policy(Path(name).expanduser(), about=about)
    raise ValueError(
        f"{name!r} is no policy: name one of {', '.join(NAMES)}, static:STEPSxROWS, or the folder of a saved policy"
    )
