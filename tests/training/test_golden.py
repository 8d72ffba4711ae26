"""Losses and gradients of block drafters against golden data of SpecForge (DFlash) and of JetSpec's formulas."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

import jaxspec
from jaxspec.targets.transformer import Transformer
from training.block_forward import block_hidden
from training.losses import cross_entropy, forward_kl, reverse_kl, slot_weights, weighted_mean

GOLDEN = Path(__file__).resolve().parents[1] / "golden"


class Case:
    """One golden training step: the loss as a function of the drafter's parameters."""

    def __init__(self, method: str):
        folder = GOLDEN / method
        self.data = dict(np.load(folder / "training.npz"))
        self.bundle = jaxspec.load(str(folder / "target"), drafter={method: str(folder / "drafter")}, dtype="float32")
        self.params, self.config = self.bundle.drafters[method], dict(self.bundle.spec.drafters)[method]
        self.target, self.tokens = Transformer(self.bundle.spec.target), jnp.asarray(self.data["input_ids"], jnp.int32)
        self.mask = jnp.asarray(self.data["loss_mask"])
        anchors = np.broadcast_to(self.data["anchors"], (len(self.tokens), self.data["anchors"].shape[-1]))
        self.anchors = jnp.asarray(anchors, jnp.int32)

    def hidden(self, params):
        embedding = self.bundle.target["params"]["embedding"]
        return block_hidden(self.config, params, embedding, self.tokens, jnp.asarray(self.data["target_hidden"]), self.anchors)

    def logits(self, hidden):
        return self.target.apply(self.bundle.target, hidden, method="logits")

    def after_anchor(self, rows, shift):
        """Rows [B, A, block, ...] of `rows` [B, S, ...] at anchor + slot + shift."""
        index = self.anchors[..., None] + jnp.arange(self.config.block_size) + shift
        return jax.vmap(lambda row, place: row[place])(rows, jnp.clip(index, 0, rows.shape[1] - 1))

    def check(self, loss, name):
        value, gradient = jax.value_and_grad(loss)(self.params)
        np.testing.assert_allclose(value, self.data[f"loss_{name}"], atol=1e-5)
        np.testing.assert_allclose(optax.tree.norm(gradient), self.data[f"gradnorm_{name}"], rtol=1e-4)
        np.testing.assert_allclose(gradient["params"]["fc"]["kernel"].T, self.data[f"grad_fc_{name}"], atol=2e-5)


@pytest.fixture(scope="module")
def dflash():
    return Case("dflash")


@pytest.fixture(scope="module")
def jetspec_case():
    return Case("jetspec")


@pytest.mark.parametrize("method", ["dflash", "jetspec"])
def test_hidden_states_of_all_blocks(method):
    case = Case(method)
    hidden = case.hidden(case.params).reshape(case.data["draft_hidden"].shape)
    # The reference leaves unspecified values in padding blocks.
    kept = np.repeat(case.data.get("keep", np.ones(case.anchors.shape, bool)), case.config.block_size, axis=1)
    np.testing.assert_allclose(hidden[kept], case.data["draft_hidden"][kept], atol=5e-5)


@pytest.mark.parametrize(("name", "gamma"), [("gnone", None), ("g7", 7.0), ("g3", 3.0)])
def test_dflash_cross_entropy(dflash, name, gamma):
    case = dflash
    keep = jnp.asarray(case.data["keep"])

    def loss(params):
        values = cross_entropy(case.logits(case.hidden(params)), case.after_anchor(case.tokens, 0))
        return weighted_mean(values, slot_weights(case.anchors, case.mask, case.config.block_size, gamma=gamma, keep=keep))

    case.check(loss, name)


@pytest.mark.parametrize("name", ["sft", "fkl_T1", "fkl_T2", "rkl_T1"])
def test_jetspec_objectives(jetspec_case, name):
    case = jetspec_case
    positions = jnp.broadcast_to(jnp.arange(case.tokens.shape[1]), case.tokens.shape)
    teacher = case.logits(case.target.apply(case.bundle.target, case.tokens, positions).hidden)
    weights = slot_weights(case.anchors, case.mask, case.config.block_size)
    np.testing.assert_array_equal(weights, case.data["active"])

    def per_slot(params):
        logits = case.logits(case.hidden(params))
        if name == "sft":
            return cross_entropy(logits, case.after_anchor(case.tokens, 0))
        divergence = reverse_kl if name.startswith("rkl") else forward_kl
        return divergence(logits, case.after_anchor(teacher, -1), float(name[-1]))

    active = np.asarray(weights) > 0
    np.testing.assert_allclose(np.asarray(per_slot(case.params))[active], case.data[f"per_{name}"][active], atol=1e-4)
    case.check(lambda params: weighted_mean(per_slot(params), weights), name)


@pytest.mark.parametrize("gamma", [3, 7])
def test_jetspec_depth_weights(jetspec_case, gamma):
    case = jetspec_case
    weights = slot_weights(case.anchors, case.mask, case.config.block_size, gamma=float(gamma))
    value = weighted_mean(jnp.asarray(case.data["per_fkl_T1"]), weights)
    np.testing.assert_allclose(value, case.data[f"loss_fkl_T1_gamma{gamma}"], atol=1e-5)
