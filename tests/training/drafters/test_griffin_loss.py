"""GRIFFIN's passes, masks, losses and gradients against the authors' two trainers, run whole up to
the first optimiser step; and on packed rows.
"""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden
from griffin_golden import load_griffin
from slow_cases import mark_thorough

from jaxspec.drafters.griffin import files
from jaxspec.targets.transformer import Transformer
from training.drafters.griffin.forward import Pairs, run_passes
from training.drafters.griffin.loss import GriffinOptions, Learnt, score_passes

golden("griffin")
DATA = arrays("griffin", "training.npz")
PASSES = len(DATA["loss"])
TENSOR, LOSS, GRADIENT = 5e-6, 1e-6, 1e-5
STAGES = {"": True, "masked_": False}  # and whether the attention has no mask


class Case:
    """The golden step: rows of one text each, filled up with zeros, shifted as the authors do."""

    def __init__(self):
        self.params = load_griffin()
        self.config = self.params.spec.drafter("griffin")
        self.weights = self.params.drafter("griffin")
        ids = DATA["input_ids"]
        place = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
        tokens = self.params.target["params"]["embedding"][ids]
        features = jnp.asarray(DATA["hidden_states"])
        self.pairs = Pairs(tokens, features, place, jnp.ones_like(ids))
        truth = jnp.roll(ids, -1, axis=1)
        self.learnt = Learnt(jnp.asarray(DATA["target"]), truth, DATA["loss_mask"] > 0)

    def run(self, weights, passes, unmasked, **options):
        """(outputs, losses) of all passes; a tile that does not divide the rows."""
        own = GriffinOptions(passes=passes, **options)
        found = run_passes(self.config, weights, self.pairs, passes, unmasked)
        target = self.params.target
        spec = self.params.spec.target
        return found, score_passes(spec, target, found, self.learnt, 37, own)

    def named(self, gradient):
        """A gradient by the authors' names of tensors."""
        return files.tensors(gradient, self.config)


@pytest.fixture(scope="module")
def case():
    return Case()


def close(found, wanted, tolerance=TENSOR):
    np.testing.assert_allclose(np.asarray(found), wanted, rtol=0, atol=tolerance)


def rows_of(prefix):
    """Rows to compare: with a mask, padded ones are meaningless."""
    return np.ones_like(DATA["input_ids"], bool) if not prefix else DATA["attention_mask"] > 0


@pytest.mark.parametrize(("prefix", "unmasked"), STAGES.items())
def test_outputs_masks_and_losses_of_every_pass(case, prefix, unmasked):
    found, losses = jax.jit(lambda: case.run(case.weights, PASSES, unmasked))()
    real = rows_of(prefix)
    for name in ("predict", "regress"):
        close(getattr(found, name)[:, real], DATA[f"{prefix}{name}"][:, real])
    close(found.fed[1:][:, real], DATA[f"{prefix}q_hidden"][:, real])
    aligned = np.asarray(losses.aligned)
    np.testing.assert_array_equal(aligned[1:][:, real], DATA[f"{prefix}align_mask"][:, real])
    used = aligned & (DATA["loss_mask"] > 0)
    np.testing.assert_array_equal(used, DATA[f"{prefix}loss_mask_used"])
    names = {"regression": "vloss", "cross_entropy": "ploss", "top": "topk_loss", "loss": "loss"}
    for ours, theirs in names.items():
        close(getattr(losses, ours), DATA[f"{prefix}{theirs}"], LOSS)
    if not prefix:
        model = Transformer(case.params.spec.target)
        logits = model.apply(case.params.target, found.predict[:, 0], method="logits")
        close(logits, DATA["logits_row0"])


@pytest.mark.parametrize(
    ("prefix", "unmasked"), mark_thorough([("masked_", False)], STAGES.items())
)
def test_gradients_of_every_pass_and_of_their_sum(case, prefix, unmasked):
    def loss_of(weights):
        return case.run(weights, PASSES, unmasked)[1].loss

    by_pass = jax.jit(jax.jacrev(loss_of))(case.weights)
    for number in range(PASSES):
        gradient = case.named(jax.tree.map(lambda leaf, number=number: leaf[number], by_pass))
        for name, array in gradient.items():
            wanted = DATA[f"{prefix}gradnorm_step.{name}"][number]
            np.testing.assert_allclose(np.linalg.norm(array), wanted, rtol=GRADIENT, err_msg=name)
    # They are added, not averaged.
    total = case.named(jax.jit(jax.grad(lambda weights: loss_of(weights).sum()))(case.weights))
    assert {f"{prefix}gradnorm_total.{name}" for name in total} <= set(DATA)
    for name, array in total.items():
        wanted = DATA[f"{prefix}gradnorm_total.{name}"]
        np.testing.assert_allclose(np.linalg.norm(array), wanted, rtol=GRADIENT, err_msg=name)
        if f"{prefix}grad_total.{name}" in DATA:
            close(array, DATA[f"{prefix}grad_total.{name}"], 1e-5)


def test_the_first_stage(case):
    def loss_of(weights):
        found, losses = case.run(weights, 1, False, top=0.0)
        return losses.loss[0], (found, losses)

    slopes, (found, losses) = jax.jit(jax.grad(loss_of, has_aux=True))(case.weights)
    real = DATA["attention_mask"] > 0
    for name in ("predict", "regress"):
        close(getattr(found, name)[0][real], DATA[f"step1_{name}"][real])
        # Pass 0 of a later stage is the first stage's, with the mask.
        close(DATA[f"masked_{name}"][0][real], DATA[f"step1_{name}"][real])
    names = {"regression": "vloss", "cross_entropy": "ploss", "loss": "loss"}
    for ours, theirs in names.items():
        close(getattr(losses, ours)[0], DATA[f"step1_{theirs}"], LOSS)
    for name, array in case.named(slopes).items():
        wanted = DATA[f"step1_gradnorm.{name}"]
        np.testing.assert_allclose(np.linalg.norm(array), wanted, rtol=GRADIENT, err_msg=name)
