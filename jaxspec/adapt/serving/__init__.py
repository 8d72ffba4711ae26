"""Engines whose drafter learns from what they serve.

engine = make_adaptive_engine(params, "bandit-paired", slots=8)
"""

from jaxspec.adapt.serving.factory import make_adaptive_engine

__all__ = ["make_adaptive_engine"]
