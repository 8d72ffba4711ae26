"""Never update: the drafter as it was deployed."""

from __future__ import annotations

from jaxspec.adapt.deciders.base import Decider, Decision


def make_never() -> Decider:
    """Make the decider that skips every query."""
    return Decider(dict, lambda state, query: (state, Decision()))
