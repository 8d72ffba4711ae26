"""PPO against Stable-Baselines3's numbers."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from training.rl.networks import init_actor_critic
from training.rl.ppo import (
    Batch,
    PpoSettings,
    advantages,
    learning_rate,
    loss_terms,
    make_ppo_optimizer,
    update,
)

GOLDEN = arrays("ltd", "ppo.npz")


def of(prefix: str) -> dict[str, np.ndarray]:
    return {name.removeprefix(prefix): GOLDEN[name] for name in GOLDEN if name.startswith(prefix)}


def batch_of(g, actions: int) -> Batch:
    count = len(g["actions"])
    old = g["old_log_prob"].astype(np.float32)
    observation = g.get("obs", np.zeros((count, 1), np.float32))
    return Batch(
        observation,
        g["actions"],
        np.ones((count, actions), bool),
        np.ones(count, np.float32),
        old,
        g["advantages"],
        g["returns"],
    )


def test_advantages():
    compute = jax.jit(advantages)
    for case in range(int(GOLDEN["gae_count"])):
        g = of(f"gae{case}_")
        names = ("rewards", "values", "episode_starts", "last_value", "last_done", "gamma", "lam")
        advantage, returns = compute(*(jnp.asarray(g[name], jnp.float32) for name in names))
        np.testing.assert_allclose(advantage, g["advantages"], atol=2e-5)
        np.testing.assert_allclose(returns, g["returns"], atol=2e-5)


@pytest.mark.parametrize("case", sorted({int(n[4]) for n in GOLDEN if re.match(r"loss\d_", n)}))
def test_losses_and_gradients(case):
    g = of(f"loss{case}_")
    settings = PpoSettings(
        1,
        clip=float(g["clip"]),
        entropy=float(g["ent_coef"]),
        value=float(g["vf_coef"]),
        rollout=len(g["actions"]),
        minibatch=len(g["actions"]),
    )
    batch = jax.tree.map(
        lambda x: x.astype(np.float32) if x.dtype == np.float64 else x,
        batch_of(g, g["logits"].shape[1]),
    )

    def total(logits, values):
        terms = loss_terms(logits, values, batch, settings)
        return terms["total"], terms

    inputs = (jnp.asarray(g["logits"], jnp.float32), jnp.asarray(g["values"], jnp.float32))
    gradients, terms = jax.jit(jax.grad(total, argnums=(0, 1), has_aux=True))(*inputs)
    for name in terms:
        np.testing.assert_allclose(terms[name], g[name], atol=2e-6, err_msg=name)
    np.testing.assert_allclose(gradients[0], g["grad_logits"], atol=1e-6)
    np.testing.assert_allclose(gradients[1], g["grad_values"], atol=1e-6)


def params_of(weights) -> dict:
    """Torch's [out, in] weights as our layers."""

    def layers(trunk, head):
        numbers = sorted(
            {name.split(".")[2] for name in weights if name.startswith(f"mlp_extractor.{trunk}.")}
        )
        names = [f"mlp_extractor.{trunk}.{number}" for number in numbers] + [head]
        return [
            {"kernel": weights[f"{name}.weight"].T, "bias": weights[f"{name}.bias"]}
            for name in names
        ]

    return jax.tree.map(
        jnp.asarray,
        {"actor": layers("policy_net", "action_net"), "critic": layers("value_net", "value_net")},
    )


@pytest.mark.parametrize("name", ["tanh", "relu"])
def test_complete_updates(name):
    g = of(f"upd_{name}_")
    settings = PpoSettings(
        1,
        rollout=len(g["actions"]),
        minibatch=len(g["actions"]),
        epochs=int(g["epochs"]),
        entropy=float(g["ent_coef"]),
        gamma=float(g["gamma"]),
        max_norm=float(g["max_grad_norm"]),
        activation=name,
    )
    before, after = (params_of(of(f"upd_{name}_{when}/")) for when in ("before", "after"))
    batch = jax.tree.map(jnp.asarray, batch_of(g, before["actor"][-1]["bias"].size))
    start = make_ppo_optimizer(settings).init(before)
    found, *_ = jax.jit(update, static_argnames="settings")(
        before, start, batch, jnp.float32(g["lr"]), jax.random.key(0), settings=settings
    )
    moved = 0.0
    for one, other, old in zip(*map(jax.tree.leaves, (found, after, before)), strict=True):
        np.testing.assert_allclose(one, other, atol=2e-7 * max(1.0, float(jnp.abs(other).max())))
        moved = max(moved, float(jnp.abs(other - old).max()))
    assert moved > 2e-4


@pytest.mark.parametrize("name", ["paper_size", "paper_depth", "script"])
def test_learning_rates(name):
    rate, warmup, total, rollout = GOLDEN[f"lr_{name}_meta"]
    expected = GOLDEN[f"lr_{name}"]
    consumed = rollout * np.arange(1, len(expected) + 1)
    for negative in (True, False):
        settings = PpoSettings(int(total), rate=rate, warmup=warmup / total, negative_rate=negative)
        wanted = expected if negative else np.maximum(expected, 0)
        np.testing.assert_allclose(learning_rate(consumed, settings), wanted, rtol=1e-9, atol=1e-15)
    assert expected[-1] < 0 or name == "script"


def test_samples_without_weight_count_for_nothing():
    rng = np.random.default_rng(0)
    g = {
        "actions": rng.integers(0, 2, 16),
        "old_log_prob": np.full(16, -0.7),
        "advantages": rng.normal(size=16),
    }
    whole = batch_of(g | {"returns": rng.normal(size=16)}, 3).replace(
        allowed=np.tile([True, True, False], (16, 1))
    )
    settings = PpoSettings(1, rollout=16, minibatch=16)
    logits, values = (
        jnp.asarray(rng.normal(size=shape), jnp.float32) for shape in ((16, 3), (16,))
    )
    some = whole.replace(weight=np.r_[np.ones(10), np.zeros(6)].astype(np.float32))
    few = jax.tree.map(lambda x: x[:10], whole)
    terms = jax.jit(loss_terms, static_argnames="settings")
    found = terms(logits, values, some, settings=settings)
    expected = terms(logits[:10], values[:10], few, settings=settings)
    for name in found:
        np.testing.assert_allclose(found[name], expected[name], rtol=1e-5)
    # A forbidden action takes part in nothing, whatever its logit.
    other = terms(logits.at[:, 2].set(50.0), values, some, settings=settings)
    for name in found:
        np.testing.assert_allclose(found[name], other[name], rtol=1e-5)


def test_orthogonal_kernels_and_their_gains():
    params = jax.jit(lambda key: init_actor_critic(key, 12, 3, (8,), (8, 4)))(jax.random.key(0))
    for layer, gain in zip(
        params["actor"] + params["critic"], (2**0.5, 0.01, 2**0.5, 2**0.5, 1.0), strict=True
    ):
        kernel = np.asarray(layer["kernel"])
        np.testing.assert_allclose(kernel.T @ kernel, gain**2 * np.eye(kernel.shape[1]), atol=1e-5)
        assert not layer["bias"].any()
