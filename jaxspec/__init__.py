"""Speculative decoding with learned drafters, in pure-functional JAX.

params = jaxspec.load("mini")
print(jaxspec.decode(params, "Question: ").text)
"""

from jaxspec.core.runtime import interrupts as _interrupts

if _interrupts.is_command():  # before the other imports, which take seconds
    _interrupts.watch()

from jaxspec.core.runtime.distribution import check as _check_distribution

# Before what imports libraries, so that its message is the one that a reader sees.
_check_distribution()

__version__ = "0.1.0"

from jaxspec import adapt, builders, policies
from jaxspec.api.decode import decode, stream
from jaxspec.api.warm import warmup
from jaxspec.call.options import Sampling, Speculation
from jaxspec.call.output import Output, Stats
from jaxspec.core.params import Params
from jaxspec.core.state import Tree
from jaxspec.round.plan import DecodeConfig
from jaxspec.tuner.tuner import Tuner
from jaxspec.zoo.checkpoint import load
from jaxspec.zoo.save import save

__all__ = [
    "DecodeConfig",
    "Output",
    "Params",
    "Sampling",
    "Speculation",
    "Stats",
    "Tree",
    "Tuner",
    "__version__",
    "adapt",
    "builders",
    "decode",
    "load",
    "policies",
    "save",
    "stream",
    "warmup",
]
