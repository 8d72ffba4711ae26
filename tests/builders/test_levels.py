"""The order of a level's nodes, however it is found."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.builders.levels import _by_counting, _by_sorting


def test_counting_orders_as_sorting_does():
    # Few values, so that equal costs and equal paths are common.
    keys = [jnp.asarray(x, jnp.uint32) for x in np.random.default_rng(0).integers(0, 3, (3, 2, 40))]
    keys[0] = keys[0].at[:, 5:9].set(0xFFFFFFFF)
    for keep in (1, 17, 40):
        expected, found = (
            jax.vmap(lambda *one, f=f, keep=keep: f(*one, keep=keep))(*keys) for f in (_by_sorting, _by_counting)
        )
        for one, other in zip(expected, found, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
