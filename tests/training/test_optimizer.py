"""The optimizers, their schedule and what they decay."""

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from training.run.optimizer import OptimizerOptions, find_matrix_axes, make_optimizer, zero_residual

PARAMS = {
    "embedding": jnp.ones((4, 2)),
    "layer": {"o": {"kernel": jnp.ones((2, 2))}, "norm": {"scale": jnp.ones(2)}},
}


def updates(options, steps=10, gradient=1.0, count=10):
    """Updates of `count` steps under a constant gradient."""
    optimizer = make_optimizer(PARAMS, steps, options)
    gradient = jax.tree.map(lambda leaf: jnp.full_like(leaf, gradient), PARAMS)
    opt_state, found = optimizer.init(PARAMS), []
    update = jax.jit(lambda opt_state: optimizer.update(gradient, opt_state, PARAMS))
    for _ in range(count):
        update_, opt_state = update(opt_state)
        found.append(update_)
    return found


def test_adamw_warms_up_and_falls_by_a_cosine():
    options = OptimizerOptions("adamw", rate=0.1, warmup=4)
    sizes = [
        -float(update["layer"]["norm"]["scale"][0])
        for update in updates(options, steps=12, count=12)
    ]
    warm = 0.1 * np.arange(4) / 4
    cosine = 0.1 * (1 + np.cos(np.pi * np.arange(8) / 8)) / 2
    np.testing.assert_allclose(sizes, [*warm, *cosine], rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "kernel", "embedding"), [("adamw", -0.05, -0.05), ("muon", -0.01, 0.0)]
)
def test_decay_is_of_matrices_only(name, kernel, embedding):
    options = OptimizerOptions(name, rate=0.1, warmup=0, weight_decay=0.5)
    found = jax.tree.map(
        lambda leaf: float(leaf.ravel()[0]), updates(options, gradient=0.0, count=1)[0]
    )
    assert found["layer"]["o"]["kernel"] == pytest.approx(kernel)
    assert found["embedding"] == pytest.approx(embedding) and found["layer"]["norm"]["scale"] == 0


def test_gradients_are_clipped_to_their_global_norm():
    optimizer = make_optimizer(PARAMS, 10, OptimizerOptions("adamw", warmup=0, clip=0.5))
    gradient = jax.tree.map(lambda leaf: jnp.full_like(leaf, 100.0), PARAMS)
    _, (_, (moments, *_)) = jax.jit(
        lambda: optimizer.update(gradient, optimizer.init(PARAMS), PARAMS)
    )()
    np.testing.assert_allclose(optax.tree.norm(moments.mu), 0.1 * 0.5, rtol=1e-5)


def test_a_linear_decay_ends_at_zero():
    options = OptimizerOptions("adamw", rate=0.1, warmup=4, decay="linear")
    sizes = [
        -float(update["layer"]["norm"]["scale"][0])
        for update in updates(options, steps=12, count=13)
    ]
    wanted = [0, 1 / 4, 2 / 4, 3 / 4, *(1 - np.arange(9) / 8)]
    np.testing.assert_allclose(sizes, 0.1 * np.array(wanted), rtol=1e-4, atol=1e-6)
    at_once = OptimizerOptions("adamw", rate=0.1, warmup=0, decay="linear")
    first = updates(at_once, steps=12, count=1)[0]
    assert float(first["layer"]["norm"]["scale"][0]) == pytest.approx(-0.1)


def test_adamw_may_decay_all_arrays():
    options = OptimizerOptions("adamw", rate=0.1, warmup=0, weight_decay=0.5, decayed="all")
    found = updates(options, gradient=0.0, count=1)[0]
    assert float(found["layer"]["norm"]["scale"][0]) == pytest.approx(-0.05)


def test_gradients_are_clipped_by_value():
    options = OptimizerOptions("adamw", warmup=0, clip=0.5, clip_by="value")
    optimizer = make_optimizer(PARAMS, 10, options)
    gradient = jax.tree.map(lambda leaf: jnp.full_like(leaf, 100.0), PARAMS)
    gradient["embedding"] = gradient["embedding"].at[0].set(-0.2)
    _, (_, (moments, *_)) = jax.jit(
        lambda: optimizer.update(gradient, optimizer.init(PARAMS), PARAMS)
    )()
    np.testing.assert_allclose(moments.mu["embedding"][:2, 0], [-0.02, 0.05], rtol=1e-5)


def test_muon_takes_hidden_kernels_only():
    more = {"out": {"kernel": jnp.ones((2, 2))}, "mlp": {"gate_up": jnp.ones((3, 2, 4))}}
    axes = find_matrix_axes(PARAMS | more, outputs=("out",))
    assert axes["mlp"]["gate_up"] == (1, 2)  # [experts, in, out]
    assert axes["out"]["kernel"] is None  # it gives logits
    assert axes["layer"]["o"]["kernel"] is not None
    assert axes["embedding"] is None and axes["layer"]["norm"]["scale"] is None


def test_layers_start_as_the_identity():
    zeroed = zero_residual(
        PARAMS | {"mlp": {name: jnp.ones((3, 2, 2)) for name in ("gate_up", "down")}}
    )
    assert zeroed["mlp"]["gate_up"].all() and not zeroed["mlp"]["down"].any()
    assert not zeroed["layer"]["o"]["kernel"].any() and zeroed["layer"]["norm"]["scale"].all()


def test_bad_options_are_refused():
    with pytest.raises(ValueError, match="warmup 9 must be"):
        make_optimizer(PARAMS, 5, OptimizerOptions(warmup=9))
    halves = {"kernel": jnp.ones((2, 2), jnp.bfloat16)}
    with pytest.raises(
        ValueError, match=r"parameter \['kernel'\] is bfloat16: master weights must be float32"
    ):
        make_optimizer(halves, 50, OptimizerOptions())
