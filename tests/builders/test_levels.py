"""The order of a level's nodes, however it is found."""

import functools

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.trees.levels import _by_counting, _by_sorting


def test_counting_orders_as_sorting_does():
    # Few values, so that equal costs and equal paths are common.
    keys = [jnp.asarray(x, jnp.uint32) for x in np.random.default_rng(0).integers(0, 3, (3, 2, 40))]
    keys[0] = keys[0].at[:, 5:9].set(0xFFFFFFFF)
    other = jnp.arange(80, dtype=jnp.int32).reshape(2, 40)
    for keep in (1, 17, 40):
        ways = [functools.partial(way, count=3, keep=keep) for way in (_by_sorting, _by_counting)]
        expected, found = (jax.vmap(way)(*keys, other) for way in ways)
        assert len(expected) == len(found) == 5
        for one, another in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, another)
            assert one.dtype == another.dtype
