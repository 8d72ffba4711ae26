"""The kernel that chooses the smallest entries, in Pallas' interpreter, against a sort; and trees."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except

from jaxspec.builders.trees.best_first import build_best_first
from pallas_kernels import smallest
from pallas_kernels.registry import Device, for_device, using


def choose(stacked, count, keep):
    return smallest.choose_smallest(stacked, count, keep, interpret=True)


# Few values, so that many entries are equal in some keys or all.
@pytest.mark.parametrize("values", (2, 5, 2**32))
@pytest.mark.parametrize(
    ("fields", "count", "total", "keep"), [(4, 3, 210, 62), (2, 2, 16, 16), (3, 1, 300, 7)]
)
def test_equals_a_stable_sort(values, fields, count, total, keep):
    random = np.random.default_rng(total)
    entries = random.integers(0, values, (fields, total), dtype=np.uint32, endpoint=values < 9)
    order = sorted(range(total), key=lambda i: (*entries[:count, i], i))[:keep]
    got = np.asarray(choose(jnp.asarray(entries), count, keep))
    np.testing.assert_array_equal(got[:-1], entries[:, order])
    np.testing.assert_array_equal(got[-1], order)


def test_serves_a_batch():
    entries = np.random.default_rng(0).integers(0, 9, (3, 2, 40), dtype=np.uint32)
    got = jax.vmap(lambda one: choose(one, 1, 20))(jnp.asarray(entries))
    np.testing.assert_array_equal(got, [choose(jnp.asarray(one), 1, 20) for one in entries])


@pytest.mark.slow
@pytest.mark.parametrize("rows", slow_except([9], (2, 9, 32)))
def test_a_tree_is_the_same(rows):
    # Rounded, so that many paths cost the same.
    raw = np.random.default_rng(rows).random((2, 6, 31)).round(1)
    logprob = jnp.asarray(-np.sort(raw, axis=-1), jnp.float32)
    token = jnp.arange(logprob.size, dtype=jnp.int32).reshape(logprob.shape)

    def build(name):
        def one(token, logprob):
            return build_best_first(token, logprob, jnp.int32(3), jnp.int32(6), rows)

        with using(name):
            return jax.vmap(one)(token, logprob)

    jax.tree.map(np.testing.assert_array_equal, build("interpret"), build("reference"))


def test_kernel_serves_gpus_that_triton_compiles_for():
    with for_device(Device("cuda", (8, 0))):
        assert smallest.find_kernel() is smallest.choose_smallest
    for device in (Device("cuda", (7, 5)), Device("cpu")):
        with for_device(device):
            assert smallest.find_kernel() is None
