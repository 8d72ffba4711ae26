"""Drafters that learn while they serve (SpecBlock, section 3.4; online speculative decoding).

session = jaxspec.adapt.AdaptiveSession(params, decider="bandit-paired")
out = session.decode(prompt)
"""

from jaxspec.adapt.deciders import DECIDERS, Decider, make_decider
from jaxspec.adapt.options import AdaptOptions
from jaxspec.adapt.replay import replay
from jaxspec.adapt.session import AdaptiveSession

__all__ = ["DECIDERS", "AdaptOptions", "Decider", "AdaptiveSession", "make_decider", "replay"]
