"""Hold out prompts in the same way everywhere.

A prompt that something was trained on is never used to tune or judge it.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

# Every fourth prompt of a domain is kept from training for validation.
HELD_OUT = 4


def number_places(domains: Sequence[str], parts: int) -> np.ndarray:
    """Number the prompts within their domains, in order of appearance, modulo `parts`.

    Returns:
      int64 [P].
    """
    domains = np.asarray(domains)
    found = np.zeros(len(domains), np.int64)
    for domain in np.unique(domains):
        own = np.flatnonzero(domains == domain)
        found[own] = np.arange(len(own)) % parts
    return found


def mark_held_out(domains: Sequence[str], every: int = HELD_OUT) -> np.ndarray:
    """Mark the last of every `every` prompts of each domain: bool [P]."""
    return number_places(domains, every) == every - 1
