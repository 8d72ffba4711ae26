"""Sampling: thresholds against a brute force, noise that depends on key and position alone, the
Gumbel-max draw.
"""

import hypothesis.strategies as st
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings

from jaxspec.core.sampling.filters import (
    _halve_in_a_loop,
    _search_four_bits,
    find_threshold,
    find_threshold_of_few,
)
from jaxspec.core.sampling.noise import gumbel, random_bits, sequence_keys, uniform
from jaxspec.core.sampling.sampling import argmax, draw, process, process_mixed
from jaxspec.core.sampling.settings import MIXED, SamplingSpec, SamplingValues, make_sampling

_process = jax.jit(process, static_argnums=1)
_gumbel = jax.jit(gumbel, static_argnums=2)
_draw = jax.jit(draw, static_argnums=3)


def brute_process(logits, temperature, top_k, top_p, min_p):
    """Kept tokens and probabilities of one row, in float64, with ties kept."""
    x = np.asarray(logits, np.float64) / temperature
    keep = np.ones(len(x), bool)
    if top_k is not None:
        keep &= x >= np.sort(x)[::-1][min(top_k, len(x)) - 1]
    if top_p is not None:
        weight = np.where(keep, np.exp(x - x.max()), 0)
        order = np.argsort(-x, kind="stable")
        mass = np.cumsum(weight[order]) / weight.sum()
        keep &= x >= x[order[np.argmax(mass >= top_p - 1e-9)]]
    if min_p is not None:
        keep &= np.exp(x - x.max()) >= min_p
    weight = np.where(keep, np.exp(x - x.max()), 0)
    return keep, weight / weight.sum()


def random_logits(seed, vocab, ties=False):
    x = np.random.default_rng(seed).normal(size=vocab) * 3
    return (np.round(x) if ties else x).astype(np.float32)


@settings(max_examples=60, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ties=st.booleans(),
    temperature=st.sampled_from([0.1, 0.7, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 3, 23, 40]),
    top_p=st.sampled_from([None, 0.05, 0.5, 0.9, 0.999]),
    min_p=st.sampled_from([None, 0.02, 0.3, 1.0]),
)
def test_process_equals_brute_force(seed, ties, temperature, top_k, top_p, min_p):
    logits = np.stack([random_logits(seed + i, 23, ties) for i in range(3)])
    spec, values = make_sampling(temperature, top_k, top_p, min_p)
    out = np.asarray(_process(logits, spec, values))
    assert out.dtype == np.float32
    for row, x in zip(out, logits, strict=True):
        keep, probability = brute_process(x, temperature, top_k, top_p, min_p)
        np.testing.assert_array_equal(np.isfinite(row), keep)
        np.testing.assert_allclose(np.exp(row) / np.exp(row).sum(), probability, atol=2e-6)


VOCAB = 1200


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    spread=st.sampled_from(["distinct", "ties", "coarse", "equal"]),
    temperature=st.sampled_from([0.1, 0.6, 1.0, 2.5]),
    top_k=st.sampled_from([None, 1, 5, 20, 64, 65, 1000, VOCAB]),
    top_p=st.sampled_from([None, 0.05, 0.5, 0.95, 0.999]),
    min_p=st.sampled_from([None, 0.02, 0.3]),
)
def test_filters_keep_the_same_tokens_as_brute_force(
    seed, spread, temperature, top_k, top_p, min_p
):
    """Also where more than FEW tokens are tied with the last one kept."""
    x = random_logits(seed, VOCAB)
    steps = {"distinct": None, "ties": 8, "coarse": 0.5, "equal": 1e-3}[spread]
    # Multiples of a power of two: logits like those of bfloat16, with large groups of equal ones.
    x = x if steps is None else (np.round(x * steps) / steps).astype(np.float32)
    out = np.asarray(_process(x, *make_sampling(temperature, top_k, top_p, min_p)))
    keep, _ = brute_process(x, temperature, top_k, top_p, min_p)
    np.testing.assert_array_equal(np.isfinite(out), keep)


@settings(max_examples=40, deadline=None)
@given(
    seed=st.integers(0, 2**31),
    ties=st.booleans(),
    share=st.sampled_from([0.01, 0.3, 0.95, 0.9999, 2.0]),
)
def test_a_gpu_finds_the_thresholds_of_a_cpu(seed, ties, share):
    """Weights of whole numbers, whose sums do not depend on the order."""
    rng = np.random.default_rng(seed)
    distance = rng.exponential(size=(3, 500)).astype(np.float32) * 4
    distance = np.round(distance) if ties else distance
    distance[:, rng.random(500) < 0.2] = np.inf
    weight = rng.integers(0, 99, (3, 500)).astype(np.float32)
    target = np.ceil(share * weight.sum(-1))
    expected = np.full(3, np.inf, np.float32)
    for i in range(3):
        within = [weight[i, distance[i] <= d].sum() >= target[i] for d in np.sort(distance[i])]
        if any(within):
            expected[i] = np.sort(distance[i])[np.argmax(within)]
    for find in (find_threshold, _halve_in_a_loop, _search_four_bits):
        np.testing.assert_array_equal(jax.jit(find)(distance, weight, target), expected)


def test_the_best_tokens_decide_as_the_whole_vocabulary():
    """Both ways to the thresholds of top-k and top-p, for tokens tied with the last one too."""
    x = np.stack([random_logits(i, 3000, ties=i > 2) for i in range(6)])
    distance = x.max(-1, keepdims=True) - x
    for count, share in ((1, 0.5), (20, 0.95), (64, 0.3), (64, 0.999)):
        edge = _halve_in_a_loop(distance, np.ones_like(x), np.full(6, count, np.float32))
        few = find_threshold_of_few(distance, jnp.int32(count), None)
        np.testing.assert_array_equal(few, edge)
        weight = np.where(distance <= np.asarray(edge)[:, None], np.exp(-distance), 0)
        both = _halve_in_a_loop(distance, weight, np.float32(share) * weight.sum(-1))
        few = find_threshold_of_few(distance, jnp.int32(count), jnp.float32(share))
        np.testing.assert_array_equal(few, both)


def test_ties_with_a_threshold_are_kept():
    logits = np.array([2.0, 1.0, 1.0, 1.0, 0.0], np.float32)
    for setting in ({"top_k": 2}, {"top_p": 0.6}):
        kept = np.isfinite(_process(logits, *make_sampling(1.0, **setting)))
        np.testing.assert_array_equal(kept, [True, True, True, True, False])


def test_thresholds_tell_neighbouring_floats_apart():
    logits = -np.concatenate(
        [[0.0], np.float32(1) + np.arange(20, dtype=np.float32) * 2.0**-23]
    ).astype(np.float32)
    for k in range(1, 22):
        np.testing.assert_array_equal(
            np.isfinite(_process(logits, *make_sampling(1.0, top_k=k))), np.arange(21) < k
        )


def test_process_is_exact_on_a_large_vocabulary():
    logits = random_logits(0, 20_000)
    for setting in ({"top_k": 137}, {"top_p": 0.95}, {"top_k": 500, "top_p": 0.8, "min_p": 1e-3}):
        out = np.asarray(_process(logits, *make_sampling(0.8, **setting)))
        settings_ = {"top_k": None, "top_p": None, "min_p": None} | setting
        keep, _ = brute_process(logits, 0.8, **settings_)
        np.testing.assert_array_equal(np.isfinite(out), keep)


# Temperature, top_k, top_p and min_p of a row each.
SIDE_BY_SIDE = [
    (0.0, None, None, None),
    (0.7, None, None, None),
    (1.0, 5, None, None),
    (1.0, 20, 0.8, None),
    (1.3, 70, None, None),  # more than the filters of few look at
    (1.0, 100, 0.5, None),
    (0.9, None, 0.6, None),
    (1.0, None, None, 0.2),
    (1.5, 20, 0.95, 0.1),
]


@pytest.mark.parametrize("ties", [False, True])
def test_settings_side_by_side_give_what_each_gives_alone(ties):
    """Bit for bit, so that a text does not depend on its neighbours in a batch."""
    logits = np.stack([random_logits(seed, VOCAB, ties) for seed in range(len(SIDE_BY_SIDE))])
    drawn = [(t, k or 0, 1.0 if p is None else p, m or 0.0) for t, k, p, m in SIDE_BY_SIDE]
    columns = [np.asarray(column) for column in zip(*drawn, strict=True)]
    kinds = (np.float32, np.int32, np.float32, np.float32)
    values = SamplingValues(*map(np.asarray, columns, kinds))
    together = _process(logits, MIXED, values)
    for row, alone, mixed in zip(logits, SIDE_BY_SIDE, together, strict=True):
        np.testing.assert_array_equal(_process(row[None], *make_sampling(*alone))[0], mixed)


def test_filters_side_by_side_hand_on_thresholds_alone():
    """Arrays of the size of the logits would be most of the temporary memory of a server's round."""
    rows, vocabulary = 3, 1000
    values = (jnp.ones(rows), jnp.full(rows, 5), jnp.full(rows, 0.9), jnp.zeros(rows))
    program = jax.make_jaxpr(process_mixed)(
        jnp.zeros((rows, vocabulary)), jnp.zeros(rows, bool), values
    )
    steps = [eqn for eqn in program.jaxpr.eqns if eqn.primitive.name == "cond"]
    assert [[x.aval.shape for x in step.outvars] for step in steps] == [[(rows,)]] * 3


def test_bad_values_never_give_nan():
    inf, nan = np.inf, np.nan
    rows = np.array(
        [[nan, 1, 2, -inf], [-inf] * 4, [nan] * 4, [inf, 0, 1, inf], [3e38, -3e38, 0, nan]],
        np.float32,
    )
    out = np.asarray(_process(rows, *make_sampling(1e-4, 3, 0.9, 0.1)))
    assert not np.isnan(out).any()
    np.testing.assert_array_equal(np.isfinite(out[0]), [False, False, True, False])
    assert not np.isfinite(out[1:3]).any()
    np.testing.assert_array_equal(np.isfinite(out[3]), [True, False, False, True])
    np.testing.assert_array_equal(argmax(jnp.asarray(rows)), [2, 0, 0, 0, 0])


def test_greedy_takes_the_lowest_of_equal_logits():
    spec, values = make_sampling(0.0, top_k=5, top_p=0.5)
    assert spec == SamplingSpec(greedy=True)
    logits = jnp.array([[[0.0, 4.0, 4.0], [1.0, 0.0, 1.0]]], jnp.bfloat16)
    tokens = draw(logits, None, jnp.zeros((1, 2), jnp.int32), spec, values)
    np.testing.assert_array_equal(tokens, [[1, 0]])
    assert tokens.dtype == jnp.int32


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((-0.1, None, None, None), "temperature must be finite and at least 0"),
        ((float("nan"), None, None, None), "temperature must be finite"),
        ((float("inf"), None, None, None), "temperature must be finite"),
        (("hot", None, None, None), "temperature must be a number"),
        ((1.0, 0, None, None), "top_k must be at least 1"),
        ((1.0, 2.5, None, None), "top_k must be an integer"),
        ((1.0, None, 0.0, None), "top_p must be in"),
        ((1.0, None, 1.1, None), "top_p must be in"),
        ((1.0, None, None, -0.1), "min_p must be in"),
        ((0.0, None, None, 1.5), "min_p must be in"),
    ],
)
def test_settings_out_of_range_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message) as error:
        make_sampling(*arguments)
    assert "\n" not in str(error.value)


def test_only_a_top_k_above_few_recompiles():
    counted = jax.jit(lambda *arguments: process(*arguments), static_argnums=1)
    logits = random_logits(1, 64)
    for temperature, top_k, top_p in ((0.7, 5, 0.9), (1.3, 17, 0.5), (1.0, 2, 0.1)):
        counted(logits, *make_sampling(temperature, top_k, top_p, None))
    assert counted._cache_size() == 1
    for top_k in (64, 65, 20, 1000):
        counted(logits, *make_sampling(1.0, top_k, 0.9, None))
    assert counted._cache_size() == 2


def test_bits_are_those_of_jax_partitionable_threefry():
    keys = sequence_keys(5, jnp.arange(3, dtype=jnp.uint32))
    with jax.threefry_partitionable(True):
        expected = [jax.random.bits(key, (37,)) for key in keys]
    np.testing.assert_array_equal(random_bits(keys, 37), np.stack(expected))


@pytest.mark.parametrize("seed", [0, 7, -1, 2**31, 2**32 - 1, 2**40 + 5, 2**63 - 1, -(2**63)])
def test_keys_are_those_of_jax_without_an_offset(seed):
    number = jnp.arange(1, dtype=jnp.uint32)
    expected = jax.random.fold_in(jax.random.key(seed, impl="threefry2x32"), 0)
    before = jax.config.jax_random_seed_offset
    jax.config.update("jax_random_seed_offset", 11)
    try:
        found = sequence_keys(seed, number)[0]
        several = sequence_keys(jnp.full(2, seed & 0x7FFFFFFF, jnp.int32), number.repeat(2))
    finally:
        jax.config.update("jax_random_seed_offset", before)
    assert jax.random.key_data(found).tolist() == jax.random.key_data(expected).tolist()
    plain = jax.random.fold_in(jax.random.key(seed & 0x7FFFFFFF, impl="threefry2x32"), 0)
    assert jax.random.key_data(several).tolist() == [jax.random.key_data(plain).tolist()] * 2


def test_bits_are_the_same_in_every_version_of_jax():
    bits = random_bits(sequence_keys(3, jnp.array([2], jnp.uint32)), 3)[0]
    np.testing.assert_array_equal(bits, [1195459093, 30242459, 3944462100])


@pytest.mark.parametrize("partitionable", [True, False])
def test_noise_depends_on_key_position_and_token_alone(partitionable):
    make = jax.jit(lambda *arguments: gumbel(*arguments), static_argnums=2)
    with jax.threefry_partitionable(partitionable):
        whole = make(
            sequence_keys(3, jnp.arange(4, dtype=jnp.uint32)),
            jnp.tile(jnp.arange(10, 17), (4, 1)),
            101,
        )
        one = make(sequence_keys(3, jnp.array([2], jnp.uint32)), jnp.array([[15]]), 101)
        short = make(sequence_keys(3, jnp.array([2], jnp.uint32)), jnp.array([[15, 10**6]]), 64)
    np.testing.assert_array_equal(one[0, 0], whole[2, 5])
    np.testing.assert_array_equal(short[0, 0], whole[2, 5, :64])
    assert len(np.unique(np.asarray(whole))) > 0.999 * whole.size


def test_gumbel_and_uniform_have_their_distributions():
    keys = sequence_keys(11, jnp.arange(8, dtype=jnp.uint32))
    noise = np.sort(
        np.asarray(_gumbel(keys, jnp.tile(jnp.arange(8), (8, 1)), 4096), np.float64).ravel()
    )
    assert np.isfinite(noise).all()
    rank = np.arange(1, noise.size + 1) / noise.size
    # Kolmogorov-Smirnov: a true sample exceeds 1.95 / sqrt(n) with probability 0.001.
    assert np.abs(np.exp(-np.exp(-noise)) - rank).max() < 1.95 / np.sqrt(noise.size)
    draws = np.sort(np.asarray(uniform(keys, 20_000), np.float64).ravel())
    assert draws.min() >= 0 and draws.max() < 1
    assert np.abs(draws - np.arange(1, draws.size + 1) / draws.size).max() < 1.95 / np.sqrt(
        draws.size
    )


def test_draw_is_argmax_under_the_noise_of_its_depth():
    rng = np.random.default_rng(4)
    logits = rng.normal(size=(2, 5, 33)).astype(np.float32) * 2
    depth = np.array([[0, 1, 1, 2, 3], [0, 1, 2, 2, 0]], np.int32)
    noise = _gumbel(
        sequence_keys(0, jnp.arange(2, dtype=jnp.uint32)), jnp.tile(jnp.arange(7, 11), (2, 1)), 33
    )
    for setting in ({}, {"top_p": 0.7}, {"top_k": 4, "min_p": 0.05}):
        tokens = np.asarray(_draw(logits, noise, depth, *make_sampling(0.7, **setting)))
        for b in range(2):
            for n in range(5):
                keep, _ = brute_process(
                    logits[b, n],
                    0.7,
                    setting.get("top_k"),
                    setting.get("top_p"),
                    setting.get("min_p"),
                )
                score = np.where(
                    keep, logits[b, n] / 0.7 + np.asarray(noise)[b, depth[b, n]], -np.inf
                )
                assert tokens[b, n] == score.argmax()


def test_drawn_tokens_follow_the_processed_distribution():
    samples, logits = 40_000, random_logits(8, 12)
    spec, values = make_sampling(1.2, top_p=0.9)
    noise = _gumbel(
        sequence_keys(1, jnp.arange(samples, dtype=jnp.uint32)), jnp.full((samples, 1), 77), 12
    )
    tokens = _draw(
        jnp.broadcast_to(logits, (samples, 1, 12)),
        noise,
        jnp.zeros((samples, 1), jnp.int32),
        spec,
        values,
    )
    _, probability = brute_process(logits, 1.2, None, 0.9, None)
    count = np.bincount(np.asarray(tokens).ravel(), minlength=12)
    assert count[probability == 0].sum() == 0
    error = np.sqrt(samples * probability * (1 - probability))
    assert (np.abs(count - samples * probability) <= 4 * error + 1e-9).all()


@pytest.mark.torch
@pytest.mark.parametrize(
    "setting",
    [{"top_k": 7}, {"top_p": 0.85}, {"min_p": 0.05}, {"top_k": 9, "top_p": 0.9, "min_p": 0.01}],
)
def test_process_equals_transformers_warpers(setting):
    import torch
    import transformers

    logits = np.stack([random_logits(i, 200) for i in range(6)])
    warpers = [transformers.TemperatureLogitsWarper(0.7)]
    if "top_k" in setting:
        warpers.append(transformers.TopKLogitsWarper(setting["top_k"]))
    if "top_p" in setting:
        warpers.append(transformers.TopPLogitsWarper(setting["top_p"]))
    if "min_p" in setting:
        warpers.append(transformers.MinPLogitsWarper(setting["min_p"]))
    scores = torch.tensor(logits)
    for warper in warpers:
        scores = warper(None, scores)
    out = np.array(_process(logits, *make_sampling(0.7, **setting)))
    np.testing.assert_array_equal(np.isfinite(out), np.isfinite(scores.numpy()))
    np.testing.assert_allclose(jax.nn.softmax(out), torch.softmax(scores, -1).numpy(), atol=1e-6)
