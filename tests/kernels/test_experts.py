"""The expert kernels in Pallas' interpreter, against the plain sum over every row's choices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.targets.layouts.four_bits import unpack
from jaxspec.targets.moe import mix_experts as mix_in_a_loop
from pallas_kernels.experts import find_kernel, mix_experts, sort_pairs
from pallas_kernels.registry import Device, for_device, using

# rows, experts, choices, inputs, features of an expert, whether all rows choose the same experts.
SHAPES = [
    (1, 8, 2, 32, 24, False),
    (37, 8, 3, 40, 12, False),
    (37, 8, 3, 16, 72, True),
    (70, 2, 1, 16, 32, True),
]


def draw(rows, experts, choices, inputs, features, same):
    random = np.random.default_rng(rows)
    shapes = (rows, inputs), (rows, choices), (experts, inputs, 2 * features)
    x, weight, gate_up, down = (
        random.standard_normal(shape).astype(np.float32)
        for shape in (*shapes, (experts, features, inputs))
    )
    chosen = [random.permutation(experts)[:choices] for _ in range(rows)]
    expert = np.tile(np.arange(choices), (rows, 1)) if same else np.stack(chosen)
    return x, expert.astype(np.int32), weight, gate_up, down


def plain(x, expert, weight, gate_up, down):
    """Row by row and choice by choice, in float64."""
    out = np.zeros(x.shape)
    for row, choice in np.ndindex(expert.shape):
        one = expert[row, choice]
        gate, up = np.split(x[row].astype(np.float64) @ gate_up[one], 2)
        out[row] += weight[row, choice] * ((gate / (1 + np.exp(-gate)) * up) @ down[one])
    return out


@pytest.mark.parametrize("shape", SHAPES)
def test_equals_the_sum_over_chosen_experts_and_reads_no_others(shape):
    arrays = draw(*shape)
    unused = np.setdiff1d(np.arange(shape[1]), arrays[1])
    expected = plain(*arrays)
    for kernel in arrays[3:]:
        kernel[unused] = np.nan  # 0 * NaN would show
    got = mix_experts(*map(jnp.asarray, arrays), interpret=True)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize(
    "mix",
    [
        functools.partial(mix_experts, partial=True, interpret=True),
        functools.partial(mix_in_a_loop, tiles_per_step=4),
    ],
)
def test_choices_of_experts_that_others_hold_count_nothing(mix):
    """Two devices with half of the experts each add up to all of them."""
    x, expert, weight, gate_up, down = draw(*SHAPES[1])
    parts = []
    for first in (0, 4):
        own = np.where((expert >= first) & (expert < first + 4), expert - first, 4)
        kernels = gate_up[first : first + 4], down[first : first + 4]
        parts.append(mix(*map(jnp.asarray, (x, own, weight, *kernels))))
    expected = plain(x, expert, weight, gate_up, down)
    np.testing.assert_allclose(sum(parts), expected, rtol=1e-5, atol=1e-5 * np.abs(expected).max())


@pytest.mark.parametrize("kind", (jnp.int8, jnp.float8_e4m3fn))
def test_quantised_experts_equal_the_loop(kind):
    x, expert, weight, gate_up, down = draw(*SHAPES[1])
    kernels = [jnp.asarray(np.round(20 * kernel)).astype(kind) for kernel in (gate_up, down)]
    random = np.random.default_rng(0)
    scales = [0.01 * (1 + random.random((8, n)).astype(np.float32)) for n in (24, 40)]
    arrays = x, expert, weight, *kernels, *scales
    got = mix_experts(*map(jnp.asarray, arrays), interpret=True)
    expected = jax.jit(functools.partial(mix_in_a_loop, tiles_per_step=4))(*arrays)
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def pack_experts(random, inputs, outputs, group, fp4):
    """Random codes of four bits of eight experts with their scales, and what they stand for."""
    packed = random.integers(0, 256, (8, inputs // 2, outputs)).astype(np.uint8)
    scales = 0.1 * (1 + random.random((8, 1, inputs // group, outputs)))
    if not fp4:
        scales = np.concatenate([scales, random.integers(0, 16, scales.shape)], axis=1)
    arrays = jnp.asarray(packed), jnp.asarray(scales, jnp.float32)
    return arrays, np.asarray(jax.vmap(unpack)(*arrays))


@pytest.mark.parametrize("fp4", [False, True], ids=["integers", "fp4"])
def test_experts_of_four_bits_equal_the_plain_sum(fp4):
    """Groups of 24 inputs, whose halves are no power of two; and of 8, of which half is a step."""
    x, expert, weight, _, _ = draw(37, 8, 3, 48, 40, False)
    random = np.random.default_rng(0)
    (gate_up, gate_up_scale), gate_up_full = pack_experts(random, 48, 80, 24, fp4)
    (down, down_scale), down_full = pack_experts(random, 40, 48, 8, fp4)
    expected = plain(x, expert, weight, gate_up_full, down_full)
    arrays = *map(jnp.asarray, (x, expert, weight)), gate_up, down, gate_up_scale, down_scale
    for mix in (
        functools.partial(mix_experts, interpret=True),
        functools.partial(mix_in_a_loop, tiles_per_step=4),
    ):
        most = np.abs(expected).max()
        np.testing.assert_allclose(mix(*arrays), expected, rtol=1e-4, atol=1e-5 * most)


def test_experts_of_four_bits_lower_for_a_gpu():
    x, expert, weight, _, _ = draw(9, 8, 2, 256, 128, False)
    random = np.random.default_rng(0)
    (gate_up, gate_up_scale), _ = pack_experts(random, 256, 256, 128, False)
    (down, down_scale), _ = pack_experts(random, 128, 256, 64, False)
    rows = jnp.asarray(x, jnp.bfloat16), jnp.asarray(expert), jnp.asarray(weight, jnp.bfloat16)
    arrays = *rows, gate_up, down, gate_up_scale, down_scale
    with for_device(Device("cuda", (9, 0))):
        assert find_kernel(jnp.bfloat16, jnp.uint8, group=32) is not None
        assert find_kernel(jnp.bfloat16, jnp.uint8, group=16) is None
        lowered = jax.jit(find_kernel(jnp.bfloat16, jnp.uint8, group=64)).trace(*arrays)
        text = lowered.lower(lowering_platforms=("cuda",)).as_text()
    assert "experts_gate_up" in text and "triton" in text


def test_pairs_are_sorted_by_expert_in_order_of_rows():
    expert = jnp.array([[2, 0], [2, 3], [0, 2]])
    pairs, first = sort_pairs(expert, 5)
    assert pairs.tolist() == [1, 4, 0, 2, 5, 3]
    assert first.tolist() == [0, 2, 2, 5, 6, 6]


def test_kernel_serves_gpus_that_triton_compiles_for():
    def served(capability, dtype, weights, platform="cuda"):
        with for_device(Device(platform, capability)):
            return find_kernel(dtype, weights) is not None

    assert served((9, 0), jnp.bfloat16, jnp.bfloat16) and served((8, 0), jnp.float32, jnp.int8)
    assert served((8, 9), jnp.bfloat16, jnp.float8_e4m3fn)
    assert not served((8, 0), jnp.bfloat16, jnp.float8_e4m3fn)
    assert not served((7, 5), jnp.float16, jnp.float16)
    assert not served(None, jnp.float32, jnp.float32, "cpu")
    with for_device(Device("cuda", (9, 0))), using("reference"):
        assert find_kernel(jnp.bfloat16, jnp.bfloat16) is None
    with using("interpret"):
        assert find_kernel(jnp.float32, jnp.float32) is not None
