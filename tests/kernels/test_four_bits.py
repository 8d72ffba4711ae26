"""The product by weights of four bits in Pallas' interpreter, against NumPy; and its layout."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import packers
import pytest

from jaxspec.targets.layouts.four_bits import FOUR_BIT, multiply_packed, pack, unpack
from jaxspec.targets.layouts.quant import FOUR_BITS
from jaxspec.targets.linear import Linear, Weights, multiply
from pallas_kernels import four_bits
from pallas_kernels.registry import Device, for_device, using

H100 = Device("cuda", (9, 0), 132)
# rows, inputs, group, outputs, dtype of rows, allowed error
CASES = [
    (1, 64, 32, 64, "float32", 1e-5),
    (5, 96, 24, 40, "float32", 1e-5),  # nothing is a power of two
    (37, 512, 256, 130, "float32", 1e-5),  # steps within a group
    (3, 256, 32, 72, "bfloat16", 0.01),
]


def draw(rows, inputs, group, outputs, dtype, fp4):
    """Rows, packed weights and scales; and the weights in float64."""
    random = np.random.default_rng(rows)
    codes = random.integers(0, 16, (inputs // group, 2, group // 2, outputs)).astype(np.uint8)
    packed = (codes[:, 0] | codes[:, 1] << 4).reshape(-1, outputs)
    scale = random.uniform(0.5, 2, (inputs // group, outputs)).astype(np.float16)
    zero = random.integers(0, 16, scale.shape).astype(np.float16)
    scales = scale[None] if fp4 else np.stack([scale, zero])
    flat = codes.reshape(len(scale), group, outputs)
    numbers = 2 * np.array(packers.FP4)[flat] if fp4 else flat - zero.astype(float)[:, None]
    weights = (numbers * scale.astype(float)[:, None]).reshape(inputs, outputs)
    x = jnp.asarray(random.standard_normal((rows, inputs)), dtype)
    return x, jnp.asarray(packed), jnp.asarray(scales), weights


def as_weights(packed, scales) -> Weights:
    return Weights(packed, {FOUR_BITS: scales})


@pytest.mark.parametrize("fp4", [False, True], ids=["integers", "fp4"])
@pytest.mark.parametrize("case", CASES)
def test_equals_numpy(case, fp4):
    *sizes, most = case
    x, packed, scales, weights = draw(*sizes, fp4)
    np.testing.assert_array_equal(unpack(packed, scales), weights)
    expected = np.asarray(x, np.float64) @ weights
    bound = most * np.abs(expected).max()
    got = four_bits.multiply(x, packed, scales, interpret=True)
    assert got.dtype == x.dtype and np.abs(np.asarray(got, np.float64) - expected).max() < bound
    twin = multiply_packed(x, packed, scales, -2)
    assert twin.dtype == x.dtype and np.abs(np.asarray(twin, np.float64) - expected).max() < bound


@pytest.mark.parametrize("cores", [1, 400])
def test_parts_of_the_groups_add_up(cores):
    """On one multiprocessor there is one part; on many, the last of three groups is one alone."""
    x, packed, scales, weights = draw(4, 96, 32, 40, "float32", False)
    with for_device(Device("cuda", (9, 0), cores)):
        got = four_bits.multiply(x, packed, scales, interpret=True)
    np.testing.assert_allclose(got, np.asarray(x) @ weights, rtol=1e-4, atol=1e-3)


def test_a_gpu_gets_the_kernel_for_few_rows_alone():
    def find(rows=8, group=128, dtype="bfloat16"):
        return four_bits.find_kernel(dtype, rows, group)

    assert find() is None  # a CPU
    with for_device(H100):
        assert find() is four_bits.multiply
        assert find(rows=65) is None and find(group=16) is None and find(dtype="float64") is None
        with using("reference"):
            assert find() is None


def test_products_of_the_layout_run_the_kernel():
    x, packed, scales, weights = draw(2, 64, 32, 48, "float32", False)
    kernel = as_weights(packed, scales)
    assert [one for one, _ in kernel.layouts()] == [FOUR_BIT]
    with using("interpret"):
        inner = str(jax.make_jaxpr(lambda x: multiply(x, kernel))(x))
        got = multiply(x[None], kernel)
    assert "pallas_call" in inner and got.shape == (1, 2, 48)
    np.testing.assert_allclose(got[0], np.asarray(x) @ weights, rtol=1e-4, atol=1e-3)


def test_lowers_for_a_gpu():
    """Triton's part of the program is there; nothing compiles it here."""
    x, packed, scales, _ = draw(8, 512, 128, 192, "bfloat16", False)
    with for_device(H100):
        program = jax.jit(lambda x, *own: multiply(x, as_weights(*own))).trace(x, packed, scales)
        text = program.lower(lowering_platforms=("cuda",)).as_text()
    assert "four_bits" in text and "triton" in text


@pytest.mark.parametrize("axis", [-2, -1])
def test_packing_rounds_to_a_step(axis):
    weights = jax.random.normal(jax.random.key(0), (192, 40))
    packed, scales = pack(weights if axis == -2 else weights.T, axis)
    assert packed.shape == (96, 40) and packed.dtype == jnp.uint8 and scales.shape == (2, 3, 40)
    error = np.abs(unpack(packed, scales) - weights).reshape(3, 64, 40)
    assert (error <= np.asarray(scales[0])[:, None] * 0.5001).all()


def test_a_product_that_could_be_left_in_parts_is_one_part():
    x, packed, scales, weights = draw(2, 64, 32, 48, "float32", False)
    variables = {"params": {"kernel": packed}, FOUR_BITS: {"kernel": scales}}
    got = Linear(48).apply(variables, x, 4)
    assert got.shape == (1, 2, 48)
    np.testing.assert_allclose(got[0], np.asarray(x) @ weights, rtol=1e-4, atol=1e-3)
