"""Acceptance rules: choose the path of a verified tree to commit, and the target's token after it.

All of them are lossless. `accept_match` belongs to draft-invariant sampling and is the default. The
other two draw their own noise, independent of that of `core.noise.gumbel`: the shared noise would
bias them, because candidates may have been chosen under it.

In this folder: B sequences, N tree rows, W mask words, A = longest + 1, V vocabulary.
"""

from jaxspec.acceptance.match import accept_match
from jaxspec.acceptance.rejection import accept_rejection, sample_candidates
from jaxspec.acceptance.sequential import accept_sequential

__all__ = ["accept_match", "accept_rejection", "accept_sequential", "sample_candidates"]
