"""DSpark's losses, weights, labels and anchors against golden data of DeepSpec's training step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from training.data.pipeline import find_anchors
from training.drafters.dspark.slot_losses import (
    accept_rate,
    compute_block_weights,
    compute_slot_losses,
    confidence_loss,
    gather_block_tokens,
    sum_accept_length,
)


@pytest.fixture(scope="module")
def data():
    return arrays("dspark", "training.npz")


@pytest.fixture(scope="module")
def batch(data):
    tokens = data["input_ids"]
    return {
        "tokens": tokens,
        "segments": np.ones_like(tokens),
        "positions": np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape),
        "loss_mask": data["loss_mask"] > 0,
        "anchors": data["anchors"],
        "keep": data["keep"],
    }


def test_anchors_are_the_references(data, batch):
    found = find_anchors(batch["segments"], batch["loss_mask"], after_prompt=True)
    np.testing.assert_array_equal(found, data["candidate_mask"])
    # Ours add the last token before each answer, where the first round of decoding begins.
    ours = find_anchors(batch["segments"], batch["loss_mask"])
    added = np.argwhere(ours & ~found)
    starts = np.argwhere(~batch["loss_mask"][:, :-1] & batch["loss_mask"][:, 1:])
    np.testing.assert_array_equal(added, starts)


def test_weights_and_labels_are_the_references(data, batch):
    slots, gamma = data["target_ids"].shape[-1], float(data["gamma"])
    weights = compute_block_weights(batch, slots, gamma)
    np.testing.assert_array_equal(weights > 0, data["eval_mask"])
    np.testing.assert_allclose(weights, data["weights"], atol=1e-7)
    before, previous, labels = gather_block_tokens(batch, slots)
    counted = data["eval_mask"]
    np.testing.assert_array_equal(labels[counted], data["target_ids"][counted])
    np.testing.assert_array_equal(previous[..., 0][data["keep"]], roots_of(data)[data["keep"]])
    np.testing.assert_array_equal(
        previous[..., 1:][counted[..., 1:]], labels[..., :-1][counted[..., 1:]]
    )
    places = (data["anchors"][..., None] + np.arange(slots))[counted]
    np.testing.assert_array_equal(before[counted], places)


def roots_of(data):
    return np.take_along_axis(data["input_ids"], data["anchors"], axis=1)


def test_losses_of_logits_are_the_references(data, batch):
    """From the reference's own logits: numerators, denominators and totals."""
    weights = data["weights"] * data["eval_mask"]
    labels = gather_block_tokens(batch, weights.shape[-1])[2]
    logits, teacher = data["draft_logits"], data["aligned_target_logits"]
    found = jax.jit(compute_slot_losses)(logits, teacher, labels)
    accept = accept_rate(found.l1)
    counted = data["eval_mask"]
    np.testing.assert_allclose(accept[counted], data["accept_rate"][counted], atol=1e-6)
    confidence = confidence_loss(data["confidence_pred"], accept)
    total, share = 0.0, {"ce": 0.1, "l1": 0.9, "confidence": 1.0}
    for name, values in {"ce": found.ce, "l1": found.l1, "confidence": confidence}.items():
        summed = np.where(counted, values * weights, 0).sum()
        np.testing.assert_allclose(summed, data[f"dspark_{name}_loss_num"], rtol=1e-6)
        np.testing.assert_allclose(weights.sum(), data[f"dspark_{name}_loss_den"], rtol=1e-6)
        total += share[name] * summed / weights.sum()
    np.testing.assert_allclose(total, data["loss_dspark"], atol=1e-6)
    length, blocks = sum_accept_length(accept, counted)
    np.testing.assert_allclose(length / blocks, data["tau_probabilistic"], atol=1e-6)


def test_kl_and_l1_against_numpy():
    generator = np.random.default_rng(0)
    logits, teacher = generator.normal(size=(2, 4, 9))
    q, p = (np.exp(x) / np.exp(x).sum(-1, keepdims=True) for x in (logits, teacher))
    found = compute_slot_losses(logits, teacher, jnp.arange(4))
    np.testing.assert_allclose(found.l1, np.abs(p - q).sum(-1), rtol=1e-6)
    np.testing.assert_allclose(found.kl, (p * np.log(p / q)).sum(-1), rtol=1e-5)
    np.testing.assert_allclose(found.ce, -np.log(q[np.arange(4), np.arange(4)]), rtol=1e-6)
    # What rejection sampling accepts: the sum of the smaller probabilities.
    np.testing.assert_allclose(accept_rate(found.l1), np.minimum(p, q).sum(-1), rtol=1e-6)


def test_confidence_does_not_teach_the_drafts():
    """The wanted acceptance is a constant; a logit that says it exactly has gradient 0."""
    wanted = jnp.asarray([0.2, 0.9])
    slope = jax.grad(lambda a, e: confidence_loss(e, a).sum(), argnums=(0, 1))
    to_accept, to_logit = slope(wanted, jnp.log(wanted / (1 - wanted)))
    np.testing.assert_array_equal(to_accept, [0, 0])
    np.testing.assert_allclose(to_logit, [0, 0], atol=1e-6)


def test_a_gap_ends_the_supervision_of_a_block():
    """A token between two that are to be learnt is not; later slots of the block do not count, nor
    do those of another document.
    """
    ones = np.ones((1, 12), np.int32)
    mask = ones.copy()
    mask[0, 4] = 0
    segments = np.repeat([[1, 2]], [8, 4], axis=1)
    batch = {
        "tokens": ones,
        "loss_mask": mask,
        "segments": segments,
        "anchors": np.array([[1, 4, 6, 9]]),
        "keep": np.array([[True, True, True, False]]),
    }
    weights = compute_block_weights(batch, 4, None)
    assert weights[0].tolist() == [[1, 1, 0, 0], [1, 1, 1, 0], [1, 0, 0, 0], [0] * 4]
