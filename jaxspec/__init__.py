"""Speculative decoding with learned drafters, in pure-functional JAX.

params = jaxspec.load("mini")
print(jaxspec.decode(params, "Question: ").text)
"""

from jaxspec.core.distribution import check as _check_distribution

_check_distribution()

from jaxspec import builders, policies  # noqa: E402
from jaxspec.core.params import Params  # noqa: E402
from jaxspec.core.state import Tree  # noqa: E402
from jaxspec.engine.api import decode, stream  # noqa: E402  (the check comes first, so that its message is the one that is seen)
from jaxspec.engine.output import Output, Stats  # noqa: E402
from jaxspec.engine.plan import DecodeConfig  # noqa: E402
from jaxspec.zoo.checkpoint import load, save  # noqa: E402

__all__ = [
    "DecodeConfig",
    "Output",
    "Params",
    "Stats",
    "Tree",
    "builders",
    "decode",
    "load",
    "policies",
    "save",
    "stream",
]
