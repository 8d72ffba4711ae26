"""The plan over slots is the best of all splits, by brute force."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.state import Accepted, Tree
from jaxspec.serve.on_device.calibration import calibrate, init_calibration, observe_rows
from jaxspec.serve.on_device.packed_rows import pack
from jaxspec.serve.on_device.share_rows import Offer, share_rows

EDGES = (4, 6, 9, 12)


def make_offer(seed, slots=3, rows=4, ties=False):
    """Random trees: sorted scores from few values, so that equal ones occur if asked for."""
    random = np.random.default_rng(seed)
    score = (
        random.choice([0.1, 0.3, 0.5, 0.9], (slots, rows)) if ties else random.random((slots, rows))
    )
    score = -np.sort(-score, axis=1)
    score[:, 0] = 1.0
    size = random.integers(0, rows + 1, slots)
    size[random.integers(slots)] = rows
    low = random.integers(1, 3, slots)
    high = np.maximum(low, random.integers(1, rows + 1, slots))
    weight = random.choice([0.5, 1.0, 2.0], slots)
    arrays = score.astype(np.float32), size, weight.astype(np.float32), low, high
    return Offer(*(jnp.asarray(x, x.dtype if x.dtype == np.float32 else jnp.int32) for x in arrays))


def splits(offer):
    """All numbers of rows that the bounds allow, with their value."""
    score, size, weight, low, high = (np.asarray(x, np.float64) for x in offer)
    ranges = [
        range(int(min(least, have)), int(min(most, have)) + 1)
        for least, most, have in zip(low, high, size, strict=True)
    ]
    for rows in itertools.product(*ranges):
        yield rows, sum(w * s[:n].sum() for w, s, n in zip(weight, score, rows, strict=True))


def share(rule, offer, seconds, forced=-1, edges=EDGES):
    shared = jax.jit(share_rows, static_argnums=(0, 2))(
        rule, offer, edges, jnp.asarray(seconds, jnp.float32), jnp.int32(forced)
    )
    return np.asarray(shared.rows), int(shared.edge), float(shared.value)


@pytest.mark.parametrize("ties", [False, True])
def test_the_best_rows_for_a_given_number(ties):
    for seed in range(60):
        offer = make_offer(seed, ties=ties)
        for index, edge in enumerate(EDGES):
            allowed = [(value, rows) for rows, value in splits(offer) if sum(rows) <= edge]
            if not allowed:
                continue
            rows, chosen, value = share("global", offer, np.ones(4), forced=index)
            assert chosen == index and rows.sum() <= edge
            assert tuple(rows) in {given for _, given in allowed}
            assert value == pytest.approx(max(allowed)[0], rel=1e-5)


def test_the_best_number_of_rows():
    for seed in range(60):
        offer = make_offer(seed)
        # A staircase with a step that a rule of the first decrease would stop at.
        seconds = np.random.default_rng(seed).permutation([1.0, 1.7, 1.2, 2.4])
        rows, edge, value = share("global", offer, seconds)
        best = max(
            value / seconds[index]
            for index, limit in enumerate(EDGES)
            for given, value in splits(offer)
            if sum(given) <= limit
        )
        assert value / seconds[edge] == pytest.approx(best, rel=1e-5)
        assert rows.sum() <= EDGES[edge]


def test_bounds_hold_and_slots_that_do_not_decode_get_nothing():
    for seed in range(60):
        offer = make_offer(seed, ties=True)
        for rule in ("global", "equal", "fixed"):
            rows, edge, _ = share(rule, offer, [1.0, 1.1, 1.2, 1.3])
            size, low, high = (np.asarray(x) for x in (offer.size, offer.low, offer.high))
            assert (rows >= np.minimum(low, size)).all() or rule == "fixed"
            assert (rows <= np.minimum(high, size)).all()
            assert rows.sum() <= EDGES[edge]


def test_an_equal_split_is_never_better():
    for seed in range(60):
        offer = make_offer(seed)
        seconds = np.asarray([1.0, 1.1, 1.4, 2.0])
        ratios = []
        for rule in ("global", "equal"):
            _, edge, value = share(rule, offer, seconds)
            ratios.append(value / seconds[edge])
        assert ratios[0] >= ratios[1] * (1 - 1e-6)


def test_rows_are_the_same_for_equal_slots():
    score = jnp.asarray([[1.0, 0.5, 0.4, 0.2]] * 3)
    three = jnp.full(3, 4, jnp.int32)
    offer = Offer(score, three, jnp.ones(3), three // 4, three)
    assert share("equal", offer, np.ones(4), forced=2)[0].tolist() == [3, 3, 3]
    assert share("equal", offer, np.ones(4), forced=1)[0].tolist() == [2, 2, 2]
    assert share("fixed", offer, np.ones(4))[:2][0].tolist() == [4, 4, 4]


def make_tree(logprob, depth, size):
    logprob, depth = jnp.asarray(logprob, jnp.float32), jnp.asarray(depth, jnp.int32)
    zeros = jnp.zeros(depth.shape, jnp.int32)
    return Tree(zeros, zeros, depth, zeros[..., None], logprob, jnp.asarray(size, jnp.int32))


def test_scores_follow_what_was_accepted_at_each_depth():
    half = float(np.log(0.5))
    tree = make_tree([[0.0, half, 2 * half, -9.0]], [[0, 1, 2, 0]], [3])
    path = Accepted(jnp.asarray([[0, 1, 0]]), jnp.asarray([2]), jnp.asarray([0]))
    known, observe = init_calibration(1, 3), jax.jit(observe_rows)
    for _ in range(2000):
        known = observe(tree, path, jnp.asarray([True]), known)
    score = np.asarray(calibrate(tree, known))[0]
    # Depth 1 was always accepted, depth 2 never; about a hundred rounds and the prior count.
    assert score[0] == 1.0 and score[1] > 0.9 and score[2] < 0.07
    assert (np.diff(score) <= 0).all()
    same = observe_rows(tree, path, jnp.asarray([False]), known)
    assert float(same.hits.sum()) < float(
        known.hits.sum()
    )  # nothing is counted of a slot that rests
    assert (same.slot_hits, same.slot_expected) == (known.slot_hits, known.slot_expected)


def test_scores_follow_what_was_accepted_in_each_slot():
    """Two slots of equal trees: one takes all of its rows, the other none, till it is used anew."""
    tree = make_tree([[0.0, np.log(0.5)]] * 2, [[0, 1]] * 2, [2, 2])
    path = Accepted(jnp.asarray([[0, 1], [0, 0]]), jnp.asarray([2, 1]), jnp.zeros(2, jnp.int32))
    known, observe = init_calibration(2, 2), jax.jit(observe_rows)
    for _ in range(50):
        known = observe(tree, path, jnp.ones(2, bool), known)
    score = np.asarray(calibrate(tree, known))[:, 1]
    # Ten rounds count: (10 + 4) / (5 + 4) and 4 / (5 + 4) of a half.
    np.testing.assert_allclose(score, [0.778, 0.222], atol=0.01)
    score = np.asarray(calibrate(tree, known.forget(jnp.asarray([False, True]))))[:, 1]
    np.testing.assert_allclose(score, [0.778, 0.5], atol=0.01)


def test_packing_is_a_round_trip():
    count = np.asarray([3, 0, 1, 4])
    packing = pack(jnp.asarray(count), 12, 5)
    slot, row, place, own = (np.asarray(x) for x in packing)
    assert own.tolist() == count.tolist()
    assert slot[:8].tolist() == [0, 0, 0, 2, 3, 3, 3, 3]
    assert row[:8].tolist() == [0, 1, 2, 0, 0, 1, 2, 3]
    assert (slot[8:] == 3).all() and (row[8:] == 0).all()
    for b, n in enumerate(count):
        assert [(slot[at], row[at]) for at in place[b, :n]] == [(b, i) for i in range(n)]
