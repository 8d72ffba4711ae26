"""Drafters that learn while they serve (SpecBlock, section 3.4; online speculative decoding).

session = jaxspec.adapt.Session(params, decider="bandit-paired")
out = session.decode(prompt)
"""

from jaxspec.adapt.deciders import DECIDERS, Decider, make_decider
from jaxspec.adapt.options import AdaptOptions
from jaxspec.adapt.replay import replay
from jaxspec.adapt.session import Session

__all__ = ["DECIDERS", "AdaptOptions", "Decider", "Session", "make_decider", "replay"]
