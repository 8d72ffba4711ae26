"""Deciders by name: when a drafter is updated, how, and when an update is taken back.

Each is a bundle of pure functions, like an optax transformation; see `jaxspec.adapt.deciders.base`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

from jaxspec.adapt.actions import FULL, HEAD
from jaxspec.adapt.deciders.bandit_paired import make_bandit_paired
from jaxspec.adapt.deciders.bandit_paper import make_bandit_paper
from jaxspec.adapt.deciders.base import ROOM, Decider, Decision, Query, UpdateResult, is_full
from jaxspec.adapt.deciders.fixed import make_always, make_never, make_osd, make_random
from jaxspec.core.runtime.near_miss import choose_one

__all__ = ["DECIDERS", "Decider", "Decision", "Query", "UpdateResult", "is_full", "make_decider"]

# Name to a function of the buffers' sizes.
DECIDERS: dict[str, Callable[[Mapping[str, int]], Decider]] = {
    "never": lambda room: make_never(),
    "osd": lambda room: make_osd(),
    "always-head": functools.partial(make_always, HEAD),
    "always-full": functools.partial(make_always, FULL),
    "random": make_random,
    "bandit-paper": lambda room: make_bandit_paper(room=room),
    "bandit-paper-full": lambda room: make_bandit_paper(room=room, actions=(FULL,)),
    "bandit-paired": lambda room: make_bandit_paired(room=room),
}


def make_decider(name: str | Decider, room: Mapping[str, int] = ROOM) -> Decider:
    """Return a decider by its name; a decider is returned as it is.

    Args:
      room: {action: positions that fill its buffer}.

    Raises:
      ValueError: unknown name; the message lists the known ones. Or the oracle, which is no
        decider.
    """
    if isinstance(name, Decider):
        return name
    if name == "oracle":
        raise ValueError(
            "the oracle knows results beforehand, so it cannot serve: `python -m benchmarks adapt` "
            "prints its gain from the arms never, always-head and always-full"
        )
    if name not in DECIDERS:
        raise ValueError(f"unknown decider {name!r}: {choose_one(name, DECIDERS)}")
    return DECIDERS[name](room)
