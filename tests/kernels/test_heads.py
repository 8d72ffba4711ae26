"""The kernel that splits, normalises and rotates heads, in Pallas' interpreter, against XLA."""

from __future__ import annotations

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from slow_cases import slow_except

from jaxspec.core.config import TransformerConfig
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.rope import rope_table
from pallas_kernels import heads, reference
from pallas_kernels.registry import Device, for_device, using


def draw(batch, rows, sizes, dtype, norms, parts=1):
    random = np.random.default_rng(rows)
    queries, keys, dim = sizes
    joined, scales, angles = (
        random.standard_normal(shape).astype(np.float32)
        for shape in (
            (parts, batch, rows, (queries + 2 * keys) * dim),
            (2, dim),
            (batch, rows, 1, dim // 2),
        )
    )
    table = jnp.cos(angles), jnp.sin(angles)
    return jnp.asarray(joined, dtype), table, tuple(jnp.asarray(scales, dtype)) if norms else None


NORM = reference.Norm(1e-6)
# Gemma's: weights are stored as w - 1, and multiply in float32.
CENTRED = reference.Norm(1e-5, centred=True, wide=True)
# One unit in the last place of the largest values.
CASES = [
    (1, 5, (4, 2, 64), "float32", True, 4e-6),
    (2, 19, (5, 1, 64), "float32", False, 4e-6),
    (1, 33, (4, 2, 128), "bfloat16", True, 0.07),
]


def test_adds_up_parts():
    sizes = (4, 2, 64)
    joined, *others = draw(1, 5, sizes, "float32", True, parts=4)
    joined, whole = joined.astype(jnp.float32), joined.sum(0, keepdims=True)
    got = heads.split_heads(joined, *others, sizes, NORM, jnp.bfloat16, interpret=True)
    expected = reference.split_heads(whole.astype(jnp.bfloat16), *others, sizes, NORM)
    for one, other in zip(got, expected, strict=True):
        assert one.dtype == jnp.bfloat16
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), atol=0.07)


@pytest.mark.parametrize(("batch", "rows", "sizes", "dtype", "norms", "most"), CASES)
@pytest.mark.parametrize("norm", [NORM, CENTRED])
def test_equals_the_reference(batch, rows, sizes, dtype, norms, most, norm):
    arrays = draw(batch, rows, sizes, dtype, norms)
    got = heads.split_heads(*arrays, sizes, norm, interpret=True)
    for one, other in zip(got, reference.split_heads(*arrays, sizes, norm), strict=True):
        assert one.shape == other.shape and one.dtype == other.dtype
        np.testing.assert_allclose(one.astype(jnp.float32), other.astype(jnp.float32), atol=most)
    np.testing.assert_array_equal(got[2], reference.split_heads(*arrays, sizes, norm)[2])


def test_derivative_is_the_references():
    sizes = (2, 1, 64)
    arrays = draw(1, 3, sizes, "float32", True)

    def total(split, joined, scales):
        return sum((x**2).sum() for x in split(joined, arrays[1], scales, sizes, NORM))

    def kernel(*given):
        return heads.split_heads(*given, interpret=True)

    got, expected = (
        jax.grad(total, argnums=(1, 2))(split, arrays[0], arrays[2])
        for split in (kernel, reference.split_heads)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


@pytest.mark.parametrize(
    ("fused", "norms"),
    slow_except([(True, True), (False, False)], itertools.product((True, False), repeat=2)),
)
@pytest.mark.thorough
def test_a_layer_gives_the_same_with_the_kernel(fused, norms):
    config = TransformerConfig(
        hidden_size=64,
        num_layers=1,
        num_heads=2,
        num_kv_heads=1,
        head_dim=64,
        ffn_size=96,
        qk_norm=norms,
    )
    layer, positions = DecoderLayer(config, fused_qkv=fused), 7 + jnp.arange(5)[None]
    x = jax.random.normal(jax.random.key(0), (1, 5, 64))
    cache = jax.random.normal(jax.random.key(1), (2, 1, 1, 1, 64, 64))
    prefix = (*cache, 0, jnp.array([7]), None)
    rope = rope_table(positions, config)
    weights = jax.jit(layer.init)(jax.random.key(2), x, rope, positions)

    def run(name):
        with using(name):
            apply = jax.jit(lambda weights: layer.apply(weights, x, rope, positions, None, prefix))
            return apply(weights)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), run("interpret"), run("reference")
    )


def test_kernel_serves_gpus_that_triton_compiles_for():
    with for_device(Device("cuda", (8, 0))):
        assert heads.find_kernel(jnp.bfloat16, 128) is heads.split_heads
        assert heads.find_kernel(jnp.bfloat16, 80) is None
    with for_device(Device("cuda", (7, 5))):
        assert heads.find_kernel(jnp.float16, 128) is None
    with for_device(Device("cpu")):
        assert heads.find_kernel(jnp.float32, 128) is None
