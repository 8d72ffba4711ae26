"""The kernel that adds a product in parts and normalises the sum, in Pallas' interpreter, against
NumPy; and layers whose products are left in parts.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.core.config import TransformerConfig
from jaxspec.targets.layers import DecoderLayer
from jaxspec.targets.linear import Linear
from jaxspec.targets.rope import rope_table
from pallas_kernels import reference, residual
from pallas_kernels.caution import ALLOW, TRITON_PRODUCTS
from pallas_kernels.registry import Device, for_device, using

H100 = Device("cuda", (9, 0), 132)
NORM = reference.Norm(1e-6)
# Gemma's: weights are stored as w - 1, and multiply in float32.
CENTRED = reference.Norm(1e-5, centred=True, wide=True)
# Widths that are and are not powers of two; the last are one unit of the largest values.
CASES = [
    ((1, 5, 64), 1, "float32", 4e-6),
    ((2, 3, 96), 4, "float32", 4e-6),
    ((1, 3, 160), 8, "bfloat16", 0.07),
]


def draw(shape, parts, dtype):
    random = np.random.default_rng(parts)
    x, scale = (random.standard_normal(each).astype(np.float32) for each in (shape, shape[-1:]))
    added = random.standard_normal((parts, *shape)).astype(np.float32)
    return jnp.asarray(x, dtype), jnp.asarray(added), jnp.asarray(scale, dtype)


@pytest.mark.parametrize("norm", [NORM, CENTRED])
@pytest.mark.parametrize(("shape", "parts", "dtype", "most"), CASES)
def test_equals_numpy(shape, parts, dtype, most, norm):
    x, added, scale = draw(shape, parts, dtype)
    got = residual.add_normalize(x, added, scale, norm, interpret=True)
    wide = np.asarray(x, np.float64) + np.asarray(added, np.float64).sum(0)
    weight = np.asarray(scale, float) + norm.centred
    normed = wide / np.sqrt((wide**2).mean(-1, keepdims=True) + norm.eps) * weight
    for one, expected in zip(got, (wide, normed), strict=True):
        assert one.shape == shape and one.dtype == x.dtype
        np.testing.assert_allclose(np.asarray(one, np.float64), expected, atol=most)


@pytest.mark.parametrize("norm", [NORM, CENTRED])
def test_rounds_where_the_reference_does(norm):
    x, added, scale = draw((1, 7, 128), 1, "bfloat16")
    arrays = x, added.astype(jnp.bfloat16), scale, norm
    got = residual.add_normalize(*arrays, interpret=True)
    np.testing.assert_array_equal(got[0], reference.add_normalize(*arrays)[0])


def test_derivative_is_the_references():
    x, added, scale = draw((1, 3, 64), 2, "float32")

    def total(kernel, *arrays):
        return sum((one**2).sum() for one in kernel(*arrays, NORM))

    def interpreted(*given):
        return residual.add_normalize(*given, interpret=True)

    got, expected = (
        jax.grad(total, argnums=(1, 2, 3))(kernel, x, added, scale)
        for kernel in (interpreted, reference.add_normalize)
    )
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), got, expected)


@pytest.mark.parametrize("parts", (2, 8))
@pytest.mark.parametrize("kind", ("float32", "int8"))
def test_parts_add_up_to_the_product(parts, kind):
    random = np.random.default_rng(parts)
    x, kernel = random.standard_normal((2, 3, 32)), random.integers(-9, 9, (32, 5))
    variables = {"params": {"kernel": jnp.asarray(kernel, kind)}}
    scale = np.ones(5) if kind == "float32" else random.random(5)
    if kind == "int8":
        variables["quant"] = {"kernel": jnp.asarray(scale, jnp.float32)}
    got = Linear(5).apply(variables, jnp.asarray(x, jnp.float32), parts)
    assert got.shape == (parts, 2, 3, 5) and got.dtype == jnp.float32
    np.testing.assert_allclose(got.sum(0), x @ kernel * scale, rtol=1e-4, atol=1e-4)


def test_a_bias_is_added_once():
    linear, x = Linear(5, bias=True), jnp.ones((1, 2, 32))
    variables = linear.init(jax.random.key(0), x)
    variables = jax.tree.map(lambda leaf: leaf + 1, variables)
    got = linear.apply(variables, x, 4)
    np.testing.assert_array_equal(got[0], linear.apply(variables, x))


@pytest.mark.parametrize("fused", (True, False))
@pytest.mark.thorough
def test_a_layer_gives_the_same_in_parts(fused, monkeypatch):
    monkeypatch.setattr(residual, "_LEAST_INPUTS", 512)
    monkeypatch.setenv(ALLOW, TRITON_PRODUCTS)
    # Wide enough for several parts of every product.
    config = TransformerConfig(
        hidden_size=1024, num_layers=1, num_heads=16, num_kv_heads=2, head_dim=64, ffn_size=1024
    )
    layer, positions = DecoderLayer(config, fused_qkv=fused), 7 + jnp.arange(3)[None]
    assert residual.count_parts(3, 1024, 1024, H100) > 1
    x = jax.random.normal(jax.random.key(0), (1, 3, 1024))
    prefix = (*jax.random.normal(jax.random.key(1), (2, 1, 1, 2, 64, 64)), 0, jnp.array([7]), None)
    rope = rope_table(positions, config)
    weights = jax.jit(layer.init)(jax.random.key(2), x, rope, positions)

    def run(name):
        with for_device(H100), using(name):
            apply = jax.jit(lambda weights: layer.apply(weights, x, rope, positions, None, prefix))
            return apply(weights)

    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=2e-5), run("interpret"), run("reference")
    )


def test_parts_fill_an_h100(monkeypatch):
    monkeypatch.setenv(ALLOW, TRITON_PRODUCTS)
    # Products of Qwen3-8B: qkv, o, down and gate_up. XLA's own choice is 8 for o, which took
    # longer.
    shapes = [(4096, 6144), (4096, 4096), (12288, 4096), (4096, 24576)]
    assert [residual.count_parts(64, *shape, H100) for shape in shapes] == [4, 4, 8, 1]
    # More rows fill the device by themselves.
    assert residual.count_parts(512, 4096, 4096, H100) == 1
    # No part is shorter than 1,024 inputs.
    assert residual.count_parts(1, 2048, 1024, H100) == 2
    assert residual.count_parts(1, 1920, 1024, H100) == 1


def test_kernel_serves_gpus_that_triton_compiles_for():
    with for_device(Device("cuda", (8, 0))):
        assert residual.find_kernel(jnp.bfloat16) is residual.add_normalize
        assert residual.find_kernel(jnp.int8) is None
    with for_device(Device("cuda", (7, 5))):
        assert residual.find_kernel(jnp.float16) is None
    with for_device(Device("cpu")):
        assert residual.find_kernel(jnp.float32) is None


def test_cublas_splits_products_by_itself():
    assert residual.count_parts(64, 12288, 4096, H100) == 1
    assert residual.count_parts(64, 12288, 4096, Device("cuda", (8, 0), 108)) > 1
