"""Held-out prompts: of every domain alike, and the same for everything that learns."""

import numpy as np

from training.splits import held_out, places


def test_prompts_count_within_their_domain():
    domains = ["prose", "code", "code", "prose", "code", "code", "prose", "prose"]
    assert places(domains, 4).tolist() == [0, 0, 1, 1, 2, 3, 2, 3]
    assert np.flatnonzero(held_out(domains)).tolist() == [5, 7]
    assert held_out(domains, every=2).sum() == 4 and held_out([]).tolist() == []
