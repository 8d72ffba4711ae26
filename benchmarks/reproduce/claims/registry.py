"""All claims, and those that a request names."""

from __future__ import annotations

from collections.abc import Sequence

from benchmarks.reproduce.claim import Claim
from benchmarks.reproduce.claims import (
    bastion,
    bastion_models,
    blockpilot,
    jetspec,
    jetspec_ablations,
    ltd,
    ltd_rounds,
    specblock,
    specblock_adapts,
)
from jaxspec.core.runtime.near_miss import find_near_miss

# Title of each paper by the first part of its claims' ids.
PAPERS = {
    "specblock": "SpecBlock",
    "bastion": "BASTION",
    "jetspec": "JetSpec",
    "blockpilot": "BlockPilot",
    "ltd": "Learning to Draft",
}
_MODULES = (
    specblock,
    specblock_adapts,
    bastion,
    bastion_models,
    jetspec,
    jetspec_ablations,
    blockpilot,
    ltd,
    ltd_rounds,
)
CLAIMS: dict[str, Claim] = {one.id: one for module in _MODULES for one in module.CLAIMS}


def choose_claims(requests: Sequence[str]) -> list[Claim]:
    """Return the claims that ids, or beginnings of ids that end at a slash, name.

    Raises:
      ValueError: one names none; the message has the nearest name.
    """
    found: dict[str, Claim] = {}
    for request in requests:
        own = {name: one for name, one in CLAIMS.items() if f"{name}/".startswith(f"{request}/")}
        if not own:
            raise ValueError(f"{request!r} is no claim: {_advise(request)}")
        found |= own
    return list(found.values())


def _advise(request: str) -> str:
    """Say what may have been meant."""
    names = set(CLAIMS)
    for name in CLAIMS:
        parts = name.split("/")
        names |= {"/".join(parts[:count]) for count in range(1, len(parts))}
    near = find_near_miss(request, sorted(names))
    hint = "" if near is None else f"did you mean {near!r}? If not, "
    return f"{hint}`jaxspec reproduce --list` lists them"
