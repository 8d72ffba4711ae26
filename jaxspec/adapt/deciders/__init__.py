"""Deciders: when a drafter is updated, how, and when an update is taken back.

Each is a bundle of pure functions, like an optax transformation; see `jaxspec.adapt.deciders.base`.
"""

from jaxspec.adapt.deciders.base import Decider, Decision, Query, Update
from jaxspec.adapt.deciders.registry import DECIDERS, make_decider

__all__ = ["DECIDERS", "Decider", "Decision", "Query", "Update", "make_decider"]
