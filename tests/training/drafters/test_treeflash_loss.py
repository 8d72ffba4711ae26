"""TreeFlash's objective and its gradients against losses through the authors' own network."""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden
from treeflash_golden import load_treeflash

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.treeflash.files import _published_name, treeflash_leaves
from jaxspec.drafters.treeflash.network import TreeFlash
from jaxspec.io.weights.weight_map import write_tree
from training.drafters.model_options import ModelOptions
from training.drafters.treeflash.loss import TreeFlashOptions, make_treeflash_loss
from training.drafters.treeflash.model import (
    find_backbone,
    init_treeflash,
    make_treeflash_config,
)
from training.loss.objective import LossOptions
from training.loss.teacher import compute_teacher_states

golden("treeflash")


@functools.cache
def step():
    """The golden batch with the target's states of this library."""
    data, bundle = arrays("treeflash", "training.npz"), load_treeflash()
    tokens = jnp.asarray(data["input_ids"])
    batch = {
        "tokens": tokens,
        "positions": jnp.broadcast_to(jnp.arange(tokens.shape[1]), tokens.shape),
        "segments": jnp.ones_like(tokens),
        "loss_mask": jnp.asarray(data["loss_mask"]) > 0,
        "anchors": jnp.asarray(data["anchors"]),
        "keep": jnp.asarray(data["keep"]),
    }
    config = bundle.spec.drafter("treeflash")
    states = jax.jit(
        lambda target: compute_teacher_states(
            bundle.spec.target, target, config.feature_layers, batch
        )
    )(bundle.target)
    np.testing.assert_allclose(states.features, data["target_features"], atol=1e-4)
    return data, bundle, batch | {"features": states.features, "hidden": states.hidden}


@functools.cache
def run(gamma, marginal, frozen=False):
    data, bundle, batch = step()
    config = bundle.spec.drafter("treeflash")
    own = TreeFlashOptions(marginal=marginal, freeze_backbone=frozen)
    loss = make_treeflash_loss(config, bundle.spec.target, LossOptions(gamma=gamma, tile=37), own)
    params, target = bundle.drafters["treeflash"]["params"], bundle.target
    if frozen:
        target = target | {"backbone": params["backbone"]}
        params = {"correction": params["correction"]}

    def mean(params):
        sums = loss({"params": params}, target, batch)
        return sums["loss"][0] / sums["loss"][1], sums

    (value, sums), gradient = jax.jit(jax.value_and_grad(mean, has_aux=True))(params)
    return float(value), {name: float(a / b) for name, (a, b) in sums.items()}, gradient


@pytest.mark.parametrize("kind", ["kl", "kl_decay"])
def test_the_loss_and_every_gradient(kind):
    data, bundle, _ = step()
    value, sums, gradient = run(float(data["gamma"]) if kind == "kl_decay" else None, 0.0)
    assert abs(value - data[f"loss_{kind}"]) < 1e-5
    assert sums["corrected"] == pytest.approx(value, abs=1e-6)
    if kind == "kl":
        assert abs(sums["marginal"] - data["loss_marginal_kl"]) < 1e-5
    leaves = treeflash_leaves(bundle.spec.drafter("treeflash"))
    named = write_tree(leaves, {"params": jax.device_get(gradient)})
    prefix = f"gradnorm_{kind}."
    names = {name.removeprefix(prefix) for name in data if name.startswith(prefix)}
    assert names == {_published_name(name) for name in named}
    for name, tensor in named.items():
        wanted = data[prefix + _published_name(name)]
        np.testing.assert_allclose(np.linalg.norm(tensor), wanted, rtol=1e-4, err_msg=name)


def test_slots_and_weights():
    """Every slot's loss, by weights that leave one slot alone."""
    data, bundle, batch = step()
    config = bundle.spec.drafter("treeflash")
    params, target = bundle.drafters["treeflash"], bundle.target
    loss = make_treeflash_loss(config, bundle.spec.target, LossOptions(), TreeFlashOptions())
    supervised = data["eval_mask"]
    decay = np.exp(-np.maximum(np.arange(supervised.shape[-1]) - 1, 0) / data["gamma"])
    np.testing.assert_allclose(supervised * decay, data["weights_decay"], atol=1e-6)
    one = jax.jit(lambda batch: loss(params, target, batch)["corrected"])
    some = np.argwhere(supervised.any(-1))
    for row, anchor in (some[0], some[-1]):
        keep = jnp.zeros_like(batch["keep"]).at[row, anchor].set(data["keep"][row, anchor])
        total, count = one(batch | {"keep": keep})
        mask = supervised[row, anchor]
        assert count == mask.sum() and mask.any()
        np.testing.assert_allclose(total, data["kl"][row, anchor][mask].sum(), atol=1e-4)


def test_the_marginal_loss_is_added():
    value, sums, _ = run(None, 0.25)
    assert value == pytest.approx(sums["corrected"] + 0.25 * sums["marginal"], abs=1e-5)


def test_a_frozen_backbone_changes_no_gradient_of_the_correction():
    (value, _, whole), (same, _, alone) = run(None, 0.0), run(None, 0.0, frozen=True)
    assert same == pytest.approx(value, abs=1e-6) and set(alone) == {"correction"}
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6),
        alone["correction"],
        whole["correction"],
    )


TARGET = TargetConfig(
    hidden_size=16, num_layers=3, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16,
    family="qwen3", vocab_size=16, tie_embeddings=True, max_positions=256,
)  # fmt: skip
OPTIONS = ModelOptions(
    kind="treeflash", block_size=4, num_layers=1, feature_layers=(0, 1), mask_token=3
)


def test_a_fresh_drafter_equals_its_backbone():
    config = make_treeflash_config(OPTIONS, TARGET)
    assert config.builder == "lattice/candidates=16"
    variables = init_treeflash(config, 0)
    x, e = jax.random.normal(jax.random.key(1), (2, 1, 3, 16))
    apply = functools.partial(TreeFlash(config).apply, variables)
    np.testing.assert_array_equal(apply(x, e, method="correct"), apply(x, method="marginal"))
    assert np.any(variables["params"]["correction"]["up_gate"]["kernel"])


def test_what_training_may_start_from():
    config = make_treeflash_config(OPTIONS, TARGET)
    assert find_backbone(config, config) is config
    bare = dataclasses.replace(config, correction=False)
    assert find_backbone(config, bare) == bare
    fields = {f.name: getattr(config, f.name) for f in dataclasses.fields(BlockDrafterConfig)}
    dflash = BlockDrafterConfig(**fields | {"builder": ""})
    assert find_backbone(config, dflash) == dflash


def test_options_that_make_no_sense():
    config = make_treeflash_config(OPTIONS, TARGET)
    with pytest.raises(ValueError, match="marginal loss is -1"):
        make_treeflash_loss(config, TARGET, LossOptions(), TreeFlashOptions(marginal=-1))
    bare = dataclasses.replace(config, correction=False)
    with pytest.raises(ValueError, match="no correction to train"):
        make_treeflash_loss(bare, TARGET, LossOptions(), TreeFlashOptions(freeze_backbone=True))
