"""EAGLE-3's training-time test against the authors' trainer, and on packed rows."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, target_of

import jaxspec
from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.eagle3 import hf_config as eagle_config
from jaxspec.drafters.eagle3.network import EagleDrafter
from jaxspec.io.files.json_files import read_json
from jaxspec.targets.transformer import Transformer
from training.drafters.eagle3.loss import chain_hidden, make_chain_losses, make_eagle_loss, totals
from training.drafters.eagle3.model import init_eagle
from training.loss.objective import LossOptions
from training.loss.teacher import compute_teacher_states

DATA = arrays("eagle3", "train_ttt.npz")
STEPS, DECAY = len(DATA["plosses"]), 0.8


class Case:
    """The golden step. Its rows are filled up with token 0 and states of 0, which is how the
    authors shift to the left.
    """

    def __init__(self):
        folder = golden("eagle3", "draft")
        target = jaxspec.load(target_of("eagle3"), dtype="float32")
        self.config = eagle_config.for_target(
            eagle_config.config_from_hf(read_json(folder / "config.json")), target.spec.target
        )
        self.params = eagle.read(folder, self.config, "float32")
        self.draft = self.params.pop("draft")
        self.target_config, self.target = target.spec.target, target.target | {"draft": self.draft}
        self.data = DATA
        self.shape = self.data["ids"].shape
        tokens = self.data["ids"].astype(np.int32)
        self.batch = make_batch(tokens, np.ones_like(tokens), self.data["loss_mask"])
        states = jax.jit(
            lambda batch: compute_teacher_states(
                self.target_config, self.target, self.config.feature_layers, batch
            )
        )
        states = states(self.batch)
        np.testing.assert_allclose(states.features, self.data["hidden_3h"], atol=1e-4)
        fill = ((0, 0), (0, 1 + STEPS))
        self.batch = {name: np.pad(array, fill) for name, array in self.batch.items()}
        self.batch |= {"features": jnp.pad(self.data["hidden_3h"], (*fill, (0, 0)))}
        self.batch |= {"hidden": jnp.pad(states.hidden, (*fill, (0, 0)))}
        # The pair of row i belongs to the anchor i + 1.
        self.batch["anchors"] = np.broadcast_to(
            1 + np.arange(self.shape[1], dtype=np.int32), self.shape
        )

    def of_row(self, rows, fill=0):
        """What rows [B, S, ...] hold at row i + j, [B, S, steps, ...]; `fill` beyond the end."""
        padded = np.pad(
            rows, ((0, 0), (0, STEPS), *((0, 0),) * (rows.ndim - 2)), constant_values=fill
        )
        return np.stack([padded[:, j : j + self.shape[1]] for j in range(STEPS)], axis=2)

    @functools.cached_property
    def teacher(self):
        """The target's logits after x_{i+1}, the last row's being 0; over all tokens."""
        logits = Transformer(self.target_config).apply(
            self.target, self.batch["hidden"][:, 1 : self.shape[1] + 1], method="logits"
        )
        return self.of_row(np.asarray(logits, np.float32))


def make_batch(tokens, segments, loss_mask):
    starts = np.diff(segments, prepend=-1) != 0
    index = np.arange(tokens.shape[1])
    positions = (index - np.maximum.accumulate(np.where(starts, index, 0), axis=1)).astype(np.int32)
    return {
        "tokens": tokens,
        "segments": segments,
        "positions": positions,
        "loss_mask": loss_mask > 0,
    }


@pytest.fixture(scope="module")
def case():
    return Case()


def test_logits_and_accuracies_of_every_step(case):
    @jax.jit
    def logits_of(features):
        embedding = case.target["params"]["embedding"]
        hidden = chain_hidden(case.config, case.params, embedding, case.batch, features, STEPS)
        return EagleDrafter(case.config).apply(case.params, hidden, method="logits")

    logits = np.asarray(logits_of(case.batch["features"]))
    np.testing.assert_allclose(logits[0].swapaxes(0, 1), case.data["logits"][:, 0], atol=5e-5)
    ids, teacher = np.asarray(case.draft["ids"]), case.teacher
    mask = case.of_row(case.data["loss_mask"])
    agreed = (logits.argmax(-1) == teacher[..., ids].argmax(-1)) & np.isin(teacher.argmax(-1), ids)
    np.testing.assert_allclose(
        (agreed * mask).sum((0, 1)) / mask.sum((0, 1)), case.data["acces"], atol=1e-5
    )


def test_losses_and_gradients(case):
    losses_of = make_chain_losses(
        case.config, case.target_config, LossOptions(tile=42, anchor_chunk=6), STEPS
    )
    mask = case.of_row(case.data["loss_mask"])
    log_p = jax.nn.log_softmax(case.teacher[..., np.asarray(case.draft["ids"])])
    entropy = -(jnp.exp(log_p) * log_p).sum(-1)

    def total(params):
        values, _, drafted = losses_of(params, case.target, case.batch)
        by_step = (mask * drafted * (values + entropy)).mean((0, 1))
        return (DECAY ** np.arange(STEPS) * by_step).sum(), by_step

    (value, by_step), gradient = jax.jit(jax.value_and_grad(total, has_aux=True))(case.params)
    np.testing.assert_allclose(by_step, case.data["plosses"], rtol=2e-5)
    np.testing.assert_allclose(value, case.data["total_loss"], rtol=1e-5)
    named = eagle.tensors(gradient | {"draft": case.draft}, case.config)
    wanted = {
        name[6:].replace("__", "."): array
        for name, array in case.data.items()
        if name.startswith("grad__")
    }
    assert set(wanted) == set(named) - {"d2t", "t2d"}
    for name, array in wanted.items():
        found = (
            named[name]
            if array.shape != (2,)
            else np.array([np.linalg.norm(named[name]), named[name].sum()])
        )
        np.testing.assert_allclose(found, array, rtol=1e-3, atol=2e-5, err_msg=name)


@pytest.mark.thorough
def test_packed_documents_do_not_see_each_other(case):
    """Two documents in one row, beside each alone in front of other text."""
    first, second = (
        case.data["ids"][0, :12].astype(np.int32),
        case.data["ids"][1, :8].astype(np.int32),
    )
    other = np.roll(case.data["ids"][1], 5).astype(np.int32)
    tokens = np.stack([np.r_[first, second], np.r_[first, other[:8]], np.r_[second, other]])
    segments = np.array([[1] * 12 + [2] * 8, [1] * 12 + [2] * 8, [1] * 8 + [2] * 12], np.int32)
    batch = make_batch(tokens, segments, np.ones_like(tokens))
    batch |= {
        "anchors": np.broadcast_to(np.arange(20, dtype=np.int32), (3, 20)),
        "keep": np.ones((3, 20), bool),
    }
    batch["loss_mask"] = np.broadcast_to(np.arange(20) != 5, (3, 20))
    slots = jax.jit(make_chain_losses(case.config, case.target_config, LossOptions(), 3))(
        case.params, case.target, batch
    )
    values = np.asarray(slots[0])
    inside = (
        np.arange(1, 12)[:, None] + np.arange(3) < 11
    )  # the predicted tokens are of the first document
    np.testing.assert_allclose(values[0, 1:12][inside], values[1, 1:12][inside], atol=2e-5)
    inside = np.arange(1, 8)[:, None] + np.arange(3) < 7
    np.testing.assert_allclose(values[0, 13:][inside], values[2, 1:8][inside], atol=2e-5)
    check_counts(batch, jax.tree.map(np.asarray, slots))
    loss = make_eagle_loss(case.config, case.target_config, LossOptions(dtype="bfloat16"), steps=3)
    assert set(jax.eval_shape(loss, case.params, case.target, batch)) == set(
        totals(slots, batch, 0.8)
    )


def check_counts(batch, slots):
    """Slots count whose token is learnt and of the anchor's document, of anchors that have a
    pair.
    """
    values, right, drafted = slots
    value, weight, hits, first_slots, whole, length = 0.0, 0.0, 0, 0, 0, 0
    for row, segments in enumerate(batch["segments"]):
        for place in range(1, 20):
            if segments[place - 1] != segments[place]:
                continue
            ends = [place + k for k in (1, 2, 3)]
            counts = [
                end < 20 and segments[end] == segments[place] and bool(batch["loss_mask"][row, end])
                for end in ends
            ]
            counted = [0.5**k * bool(counts[k] and drafted[row, place, k]) for k in range(3)]
            value, weight = value + np.dot(counted, values[row, place]), weight + sum(counted)
            first_slots, hits = (
                first_slots + counts[0],
                hits + (counts[0] and bool(right[row, place, 0])),
            )
            if all(counts):
                whole, length = whole + 1, length + 1 + int(np.cumprod(right[row, place]).sum())
    found = totals(slots, batch, 0.5)
    np.testing.assert_allclose(found["loss"], (value, weight), rtol=1e-5)
    np.testing.assert_array_equal(found["accuracy_1"], (hits, first_slots))
    np.testing.assert_array_equal(found["accept_length"], (length, whole))


@pytest.mark.parametrize(
    ("options", "changes", "message"),
    [
        (LossOptions(gamma=7.0), {}, "gamma is the decay"),
        (LossOptions(temperature=0.0), {}, "temperature is 0.0"),
        (LossOptions(), {"steps": 0}, "steps is 0"),
        (LossOptions(), {"decay": 1.5}, "decay is 1.5"),
    ],
)
def test_options_out_of_range(case, options, changes, message):
    with pytest.raises(ValueError, match=message):
        make_eagle_loss(case.config, case.target_config, options, **changes)


def test_first_weights(case):
    head = jnp.ones((case.config.hidden_size, case.config.draft_vocab_size))
    for variables in (
        jax.eval_shape(lambda: init_eagle(case.config, 0, head)),
        jax.eval_shape(lambda: init_eagle(case.config, 0)),
    ):
        assert jax.tree.map(jnp.shape, variables) == jax.tree.map(jnp.shape, case.params)
