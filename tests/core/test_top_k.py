"""Top-k against NumPy's stable sort: the ways of a CPU and of a GPU, with ties and excluded
entries.
"""

import jax
import numpy as np
import pytest

from jaxspec.core.sampling.top_k import _places, _places_on_cpu, top_k


def rows_with(kind, count):
    """Rows [2, 3, count] of distinct values, of many ties, or almost all excluded."""
    rng = np.random.default_rng(count)
    x = rng.normal(size=(2, 3, count)).astype(np.float32) * 3
    if kind == "ties":
        x = np.round(x) + 0.0  # no -0.0, which jax.lax.top_k puts after 0.0
    if kind == "excluded":
        x[rng.random(x.shape) < 0.995] = -np.inf
    return x


# On a GPU: one kernel of XLA; counting at once; groups, of which the last is not full; groups of
# groups. On a CPU: the library; groups.
SIZES = ((100, 16), (100, 100), (1500, 17), (7000, 64), (40_000, 63), (40_000, 7), (151_936, 64))


@pytest.mark.parametrize("kind", ("distinct", "ties", "excluded"))
@pytest.mark.parametrize(("count", "k"), SIZES)
def test_top_k_is_exact_with_ties_to_the_lower_index(count, k, kind, monkeypatch):
    monkeypatch.setattr("jaxspec.core.sampling.top_k._PAIRS", 2**22)
    x = rows_with(kind, count)
    order = np.argsort(-x, axis=-1, kind="stable")[..., :k]
    for find in (_places, _places_on_cpu):
        np.testing.assert_array_equal(jax.jit(find, static_argnums=1)(x, k), order)
    values, indices = jax.jit(top_k, static_argnums=1)(x, k)
    np.testing.assert_array_equal(indices, order)
    np.testing.assert_array_equal(values, np.take_along_axis(x, order, -1))
    assert values.dtype == np.float32 and indices.dtype == np.int32


def test_rows_may_be_vectors_and_half_precise():
    x = np.round(np.random.default_rng(0).normal(size=9000) * 9)
    x = jax.numpy.asarray(x, jax.numpy.bfloat16)
    order = np.argsort(-np.asarray(x, np.float32), kind="stable")[:70]
    for find in (_places, _places_on_cpu):
        np.testing.assert_array_equal(find(x, 70), order)
    assert top_k(x, 70)[0].dtype == x.dtype
