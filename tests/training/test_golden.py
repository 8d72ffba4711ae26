"""Losses and gradients of block drafters against golden data of SpecForge (DFlash) and of JetSpec's
formulas.
"""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from golden_data import arrays, golden, target_of
from slow_cases import slow_except

import jaxspec
from training.drafters.dflash.forward import block_hidden
from training.drafters.dflash.loss import make_block_loss
from training.loss.objective import LossOptions
from training.loss.terms import compute_slot_weights


class Case:
    """One golden training step."""

    def __init__(self, method: str):
        self.data = arrays(method, "training.npz")
        self.bundle = jaxspec.load(
            target_of(method), drafter={method: golden(method, "drafter")}, dtype="float32"
        )
        self.params, self.config = (
            self.bundle.drafters[method],
            dict(self.bundle.spec.drafters)[method],
        )
        tokens = self.data["input_ids"].astype(np.int32)
        anchors = np.broadcast_to(
            self.data["anchors"], (len(tokens), self.data["anchors"].shape[-1])
        ).astype(np.int32)
        self.batch = {
            "tokens": tokens,
            "positions": np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape),
            "segments": np.ones_like(tokens),
            "loss_mask": self.data["loss_mask"] > 0,
            "anchors": anchors,
            "keep": self.data.get("keep", np.ones(anchors.shape, bool)),
        }

    def check(self, name: str, **options):
        """Loss, gradient of `fc` and the gradient's norm; a tile that does not divide the rows, and
        the target's own states.
        """
        loss = make_block_loss(
            self.config, self.bundle.spec.target, LossOptions(tile=37, **options)
        )

        def mean(params):
            total, weight = loss(params, self.bundle.target, self.batch)["loss"]
            return total / weight

        value, gradient = jax.jit(jax.value_and_grad(mean))(self.params)
        np.testing.assert_allclose(value, self.data[f"loss_{name}"], rtol=1e-5)
        if f"gradnorm_{name}" in self.data:
            np.testing.assert_allclose(
                optax.tree.norm(gradient), self.data[f"gradnorm_{name}"], rtol=1e-4
            )
            np.testing.assert_allclose(
                gradient["params"]["fc"]["kernel"].T, self.data[f"grad_fc_{name}"], atol=2e-5
            )


@pytest.fixture(scope="module")
def dflash():
    return Case("dflash")


@pytest.fixture(scope="module")
def jetspec_case():
    return Case("jetspec")


@pytest.mark.parametrize(
    ("method", "chunk"),
    slow_except(
        [("dflash", 2), ("jetspec", None)], itertools.product(("dflash", "jetspec"), (None, 2))
    ),
)
def test_hidden_states_of_all_blocks(method, chunk, dflash, jetspec_case):
    case = dflash if method == "dflash" else jetspec_case
    features = jnp.asarray(case.data["target_hidden"])
    embedding = case.bundle.target["params"]["embedding"]
    hidden_of = jax.jit(
        lambda batch, features: block_hidden(
            case.config, case.params, embedding, batch, features, chunk=chunk
        )
    )
    hidden = hidden_of(jax.tree.map(jnp.asarray, case.batch), features)
    hidden = hidden.reshape(case.data["draft_hidden"].shape)
    # The reference leaves unspecified values in padding blocks.
    kept = np.repeat(case.batch["keep"], case.config.block_size, axis=1)
    np.testing.assert_allclose(hidden[kept], case.data["draft_hidden"][kept], atol=5e-5)


@pytest.mark.parametrize(
    ("name", "gamma"),
    slow_except([("gnone", None), ("g3", 3.0)], [("gnone", None), ("g7", 7.0), ("g3", 3.0)]),
)
def test_dflash_cross_entropy(dflash, name, gamma):
    dflash.check(name, kind="ce", gamma=gamma)


OBJECTIVES = [
    ("sft", dict(kind="ce")),
    ("fkl_T1", dict(kind="fkl")),
    ("fkl_T2", dict(kind="fkl", temperature=2.0)),
    ("rkl_T1", dict(kind="rkl")),
    ("fkl_T1_gamma3", dict(kind="fkl", gamma=3.0)),
    ("fkl_T1_gamma7", dict(kind="fkl", gamma=7.0)),
]


# Every objective is a compilation: by default one of each kind of divergence.
@pytest.mark.parametrize(("name", "options"), slow_except(OBJECTIVES[2:4], OBJECTIVES))
def test_jetspec_objectives(jetspec_case, name, options):
    jetspec_case.check(name, **options)


def test_active_slots_are_the_references(jetspec_case):
    weights = compute_slot_weights(
        jax.tree.map(jnp.asarray, jetspec_case.batch), jetspec_case.config.block_size
    )
    np.testing.assert_array_equal(weights, jetspec_case.data["active"])
