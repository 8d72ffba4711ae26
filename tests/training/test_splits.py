"""Held-out prompts: of every domain alike, and the same for everything that learns."""

import numpy as np

from training.data.splits import mark_held_out, number_places


def test_prompts_count_within_their_domain():
    domains = ["prose", "code", "code", "prose", "code", "code", "prose", "prose"]
    assert number_places(domains, 4).tolist() == [0, 0, 1, 1, 2, 3, 2, 3]
    assert np.flatnonzero(mark_held_out(domains)).tolist() == [5, 7]
    assert mark_held_out(domains, every=2).sum() == 4 and mark_held_out([]).tolist() == []
