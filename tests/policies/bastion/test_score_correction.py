"""Correcting path scores: isotonic regression against brute force, and a miscalibrated drafter that
is set right.
"""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.policies.bastion.score_correction import (
    BINS,
    correct_scores,
    count_verified_nodes,
    fit_isotonic,
    init_scores,
    refresh_ratios,
)


def pool(values, weights):
    """Pool-adjacent-violators in plain Python."""
    blocks = []
    for value, weight in zip(values, weights, strict=True):
        blocks.append([value, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            b, a = blocks.pop(), blocks.pop()
            total = a[1] + b[1]
            blocks.append([(a[0] * a[1] + b[0] * b[1]) / total, total, a[2] + b[2]])
    return [value for value, _, count in blocks for _ in range(count)]


def test_isotonic_pools_adjacent_violators():
    rng = np.random.default_rng(0)
    values, weights = (
        rng.random((20, BINS)).astype(np.float32),
        rng.random((20, BINS)).astype(np.float32) + 0.1,
    )
    expected = [pool(v, w) for v, w in zip(values.tolist(), weights.tolist(), strict=True)]
    np.testing.assert_allclose(jax.jit(fit_isotonic)(values, weights), expected, rtol=2e-4)


def test_without_evidence_scores_are_what_they_say():
    logprob, depth = jnp.log(jnp.array([[1.0, 0.7, 0.2, 0.0]])), jnp.array([[0, 1, 2, 0]])
    np.testing.assert_allclose(
        correct_scores(init_scores(3), logprob, depth), [[1.0, 0.7, 0.2, 0.0]], rtol=1e-6
    )
    np.testing.assert_allclose(
        correct_scores(refresh_ratios(init_scores(3)), logprob, depth),
        [[1.0, 0.7, 0.2, 0.0]],
        rtol=1e-5,
    )


def test_an_overconfident_drafter_is_corrected_by_depth():
    """Accepted with the square of what the drafter says at depth 1, and with what it says at depth
    2.
    """
    rng = np.random.default_rng(1)

    def rounds(state, count=400, rows=8):
        step = jax.jit(count_verified_nodes)
        for _ in range(count):
            logprob = np.log(rng.uniform(0.05, 1.0, (1, rows)).astype(np.float32))
            depth = rng.integers(1, 3, (1, rows)).astype(np.int32)
            rate = np.exp(np.where(depth == 1, 2.0, 1.0) * logprob)
            state = step(state, logprob, depth, rng.random((1, rows)) < rate)
        return jax.jit(refresh_ratios)(state)

    state = rounds(init_scores(2))
    assert float(state.count.sum()) > 1000
    p = np.array([0.9, 0.6, 0.3], np.float32)
    for depth, truth in ((1, p**2), (2, p)):
        found = correct_scores(state, jnp.log(p), jnp.full(3, depth))
        np.testing.assert_allclose(found, truth, atol=0.1)
        assert np.all(
            np.diff(np.asarray(state.hits / jnp.maximum(state.count, 1))[depth - 1, :4]) < 0.1
        )


def test_roots_padding_and_unverified_rows_do_not_count():
    state = count_verified_nodes(
        init_scores(2),
        jnp.array([[0.0, -0.1, -jnp.inf]]),
        jnp.array([[0, 2, 0]]),
        jnp.array([[True, True, False]]),
    )
    assert float(state.count.sum()) == float(state.hits.sum()) == float(state.hits[1, 0]) == 1.0
