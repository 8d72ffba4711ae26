"""The grouped expert computation against the plain sum over every row's choices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.targets.moe import mix_experts, mix_with_gradient
from pallas_kernels.reference import Gate, gate_units


def plain(rows, expert, weight, gate_up, down):
    """Row by row, choice by choice, in float64."""
    out = np.zeros(rows.shape)
    for r, c in np.ndindex(expert.shape):
        gate, up = np.split(rows[r].astype(np.float64) @ gate_up[expert[r, c]], 2)
        out[r] += weight[r, c] * ((gate / (1 + np.exp(-gate)) * up) @ down[expert[r, c]])
    return out


def arrays(rows, experts, chosen, skewed):
    generator = np.random.default_rng(rows + experts)
    shapes = ((rows, 16), (rows, chosen), (experts, 16, 24), (experts, 12, 16))
    x, weight, gate_up, down = (generator.normal(size=shape).astype(np.float32) for shape in shapes)
    if skewed:
        expert = np.tile(np.arange(experts - chosen, experts, dtype=np.int32), (rows, 1))
    else:
        expert = np.stack([generator.permutation(experts)[:chosen] for _ in range(rows)]).astype(
            np.int32
        )
    return x, expert, weight, gate_up, down


@pytest.mark.parametrize("tiles_per_step", [1, 16])
@pytest.mark.parametrize(
    ("rows", "experts", "chosen", "skewed"),
    [(1, 8, 2, False), (3, 16, 4, False), (37, 8, 3, False), (37, 8, 3, True), (70, 2, 1, True)],
)
def test_sum_over_chosen_experts(rows, experts, chosen, skewed, tiles_per_step):
    inputs = arrays(rows, experts, chosen, skewed)
    out = jax.jit(functools.partial(mix_experts, tiles_per_step=tiles_per_step))(*inputs)
    np.testing.assert_allclose(out, plain(*inputs), rtol=1e-5, atol=2e-4)


def test_only_the_chosen_experts_are_touched():
    """Weights of the others are NaN: 0 * NaN would show."""
    x, expert, weight, gate_up, down = arrays(9, 8, 2, True)
    gate_up[:6], down[:6] = np.nan, np.nan
    for tiles_per_step in (1, 16):
        out = mix_experts(
            *map(jnp.asarray, (x, expert, weight, gate_up, down)), tiles_per_step=tiles_per_step
        )
        assert np.isfinite(out).all()


@pytest.mark.parametrize("biased", [False, True])
def test_gradient_is_that_of_the_plain_sum(biased):
    """Of rows, weights of choices, kernels and biases, in tiles with empty slots and an unused
    expert.
    """
    rows, expert, weight, gate_up, down = arrays(37, 8, 3, False)
    expert[expert == 5] = 8  # counts nothing: another device's, here nobody's
    wanted = np.random.default_rng(0).normal(size=rows.shape).astype(np.float32)
    how = Gate(clamp=(0.8, 1.7)) if biased else Gate()
    mix = functools.partial(mix_experts, gate=how, tiles_per_step=16)
    random = np.random.default_rng(1)
    biases = [random.normal(size=(8, kernel.shape[-1])) * biased for kernel in (gate_up, down)]
    biases = [bias.astype(np.float32) for bias in biases]

    def dense(rows, weight, gate_up, down, gate_up_bias, down_bias):
        shares = (jax.nn.one_hot(expert, 8) * weight[..., None]).sum(1)  # [R, X]
        both = jnp.einsum("re,xef->rxf", rows, gate_up) + gate_up_bias
        hidden = gate_units(*jnp.split(both, 2, -1), how)
        out = jnp.einsum("rxf,xfe->rxe", hidden, down) + down_bias
        return jnp.einsum("rx,rxe->re", shares, out)

    def tiled(rows, weight, gate_up, down, *biases):
        biases = biases if biased else (None, None)
        kernels = gate_up, down, None, None, *biases
        return mix_with_gradient((mix, how), rows, expert, weight, *kernels)

    found, expected = (
        jax.jit(jax.grad(lambda *x, f=f: (f(*x) * wanted).sum(), argnums=range(4 + 2 * biased)))(
            rows, weight, gate_up, down, *biases
        )
        for f in (tiled, dense)
    )
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=2e-3)


def test_quantised_experts_are_not_trained():
    rows, expert, weight, gate_up, down = arrays(3, 8, 2, False)
    ones = np.ones((8, 24), np.float32), np.ones((8, 16), np.float32)
    mix = functools.partial(mix_experts, tiles_per_step=1)
    with pytest.raises(ValueError, match="load full weights"):
        given = expert, weight, gate_up, down, *ones, None, None
        jax.grad(lambda x: mix_with_gradient((mix, Gate()), x, *given).sum())(rows)
