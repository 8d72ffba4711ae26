"""Which prompts are held out: the same way everywhere, so that what learned from one is never tuned
or judged on it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Every fourth prompt of a domain is kept from training for validation.
HELD_OUT = 4


def places(domains: Sequence[str], parts: int) -> np.ndarray:
    """int64 [P]: the number of each prompt within its domain, in order of appearance, modulo
    `parts`.
    """
    domains = np.asarray(domains)
    found = np.zeros(len(domains), np.int64)
    for domain in np.unique(domains):
        own = np.flatnonzero(domains == domain)
        found[own] = np.arange(len(own)) % parts
    return found


def held_out(domains: Sequence[str], every: int = HELD_OUT) -> np.ndarray:
    """bool [P]: the last of every so many prompts of each domain."""
    return places(domains, every) == every - 1
