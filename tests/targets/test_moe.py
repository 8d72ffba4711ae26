"""The grouped expert computation against the plain sum over every row's choices."""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.targets.moe import mix_experts, mix_with_gradient


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


def test_gradient_is_that_of_the_plain_sum():
    """Of rows, weights of choices and kernels, in tiles with empty slots and an unused expert."""
    rows, expert, weight, gate_up, down = arrays(37, 8, 3, False)
    expert[expert == 5] = 8  # counts nothing: another device's, here nobody's
    wanted = np.random.default_rng(0).normal(size=rows.shape).astype(np.float32)
    mix = functools.partial(mix_experts, tiles_per_step=16)

    def dense(rows, weight, gate_up, down):
        shares = (jax.nn.one_hot(expert, 8) * weight[..., None]).sum(1)  # [R, X]
        gate, up = jnp.split(jnp.einsum("re,xef->rxf", rows, gate_up), 2, -1)
        return jnp.einsum("rx,rxf,xfe->re", shares, jax.nn.silu(gate) * up, down)

    def tiled(rows, weight, gate_up, down):
        return mix_with_gradient(mix, rows, expert, weight, gate_up, down, None, None)

    found, expected = (
        jax.jit(jax.grad(lambda *x, f=f: (f(*x) * wanted).sum(), argnums=(0, 1, 2, 3)))(
            rows, weight, gate_up, down
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
        jax.grad(lambda x: mix_with_gradient(mix, x, expert, weight, gate_up, down, *ones).sum())(
            rows
        )
