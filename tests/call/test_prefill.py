"""Prompts of a batch run one after the other, each in its own chunks, as if it were alone."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_models import load_short
from slow_cases import slow_except

from jaxspec.call import prefill as module
from jaxspec.call.session import prepare, run_prefill
from jaxspec.core.cache import SequenceCache, append, filled
from jaxspec.drafters.registry import make_drafter
from jaxspec.round.sizes import prompt_chunk
from pallas_kernels import reference
from pallas_kernels.registry import using

LENGTHS = (200, 3, 64, 65)


@pytest.fixture(scope="module", params=slow_except(["eagle3"], ["jetspec", "eagle3"]))
def params(request):
    return load_short(request.param)


def prompts():
    rng = np.random.default_rng(5)
    return [rng.integers(0, 4096, length).tolist() for length in LENGTHS]


def test_a_short_prompt_costs_its_own_chunks_only(params, monkeypatch):
    rows = []

    def counting(cache, k, v, count, stash):
        assert k[0].shape[1] == 1
        jax.debug.callback(lambda count: rows.append(int(count[0])), count)
        return append(cache, k, v, count, stash)

    monkeypatch.setattr(module, "append", counting)
    # No other test has this capacity, so the program is traced here.
    session = prepare(params, prompts(), max_new_tokens=4, budget=4, capacity=1216)
    jax.block_until_ready(run_prefill(session))
    jax.effects_barrier()
    size = prompt_chunk()
    expected = [min(size, n - at) for n in LENGTHS for at in range(0, n, size)]
    assert sorted(rows) == sorted(expected) and len(rows) == 8


def test_each_prompt_is_run_as_if_it_were_alone(params):
    fixed = dict(max_new_tokens=4, budget=4, capacity=320)
    together = run_prefill(prepare(params, prompts(), **fixed))
    assert together.cache.length.tolist() == list(LENGTHS)
    drafter = make_drafter(params.spec.drafters[0][1])
    shapes = jax.tree.leaves(jax.eval_shape(lambda: drafter.init(4, 320, jnp.float32)))
    for b, (prompt, length) in enumerate(zip(prompts(), LENGTHS, strict=True)):
        alone = run_prefill(prepare(params, prompt, **fixed))
        assert together.root[b] == alone.root[0]
        for one, other in zip(*((*x.cache.k, *x.cache.v) for x in (together, alone)), strict=True):
            np.testing.assert_array_equal(one[:, b, :, :length], other[:, 0, :, :length])
        leaves = map(jax.tree.leaves, (together.draft, alone.draft))
        for one, other, shape in zip(*leaves, shapes, strict=True):
            axis = shape.shape.index(4)
            # All sequences absorb their last tokens at once.
            # Sums round relative to their largest terms, and differ from processor to processor.
            near = 4e-6 * np.abs(other).max(initial=10)
            np.testing.assert_allclose(np.take(one, [b], axis), other, rtol=1e-4, atol=near)


@pytest.mark.thorough
def test_one_sequence_of_a_cache_is_read_and_written_in_place():
    rng = np.random.default_rng(0)
    shape = (3, 4, 9, 2, 8)
    k, v = (jnp.asarray(rng.normal(size=shape), jnp.float32) for _ in range(2))
    cache = filled((k,), (v,), jnp.array([4, 9, 2, 6]))
    one = SequenceCache(cache.k, cache.v, cache.length[3:], jnp.int32(3))
    q, new_k, new_v = (
        jnp.asarray(rng.normal(size=(1, 3, heads, 8)), jnp.float32) for heads in (4, 2, 2)
    )
    places = jnp.arange(6, 9)[None]
    given = (q, new_k, new_v, places, None)
    alone = (cache.k[0][:, 3:], cache.v[0][:, 3:], 1, cache.length[3:], None)
    expected = reference.tree_attention(*given, alone)
    part = module.hold_sequence(cache, cache.length[3:], jnp.int32(3))
    with using("interpret"):  # kernels that cannot read it by its place
        assert type(module.hold_sequence(cache, part.length, part.sequence)) is SequenceCache
    assert part.prefix(1)[0] is cache.k[0] and one.prefix(1)[0].shape == (12, 1, 2, 9, 8)
    for prefix in (part.prefix(1), one.prefix(1)):
        np.testing.assert_array_equal(reference.tree_attention(*given, prefix), expected)
    rows = jnp.asarray(rng.normal(size=(3, 1, 3, 2, 8)), jnp.float32)
    after = append(one, (rows,), (-rows,), jnp.array([2]))
    assert after.length.tolist() == [8]
    np.testing.assert_array_equal(after.k[0][:, 3, :, 6:9], rows[:, 0].swapaxes(1, 2))
    np.testing.assert_array_equal(after.v[0][:, 3, :, 6:9], -rows[:, 0].swapaxes(1, 2))
    np.testing.assert_array_equal(after.k[0][:, :3], cache.k[0][:, :3])
    np.testing.assert_array_equal(after.k[0][:, 3, :, :6], cache.k[0][:, 3, :, :6])
