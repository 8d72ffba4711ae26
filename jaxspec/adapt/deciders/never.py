"""Never update: the drafter as it was deployed."""

from __future__ import annotations

from jaxspec.adapt.deciders.base import Decider, Decision


def make_never(learns: bool = False) -> Decider:
    """Make the decider that skips every query.

    Args:
      learns: gather evidence all the same, to measure what that takes.
    """
    return Decider(dict, lambda state, query: (state, Decision()), learns=learns)
