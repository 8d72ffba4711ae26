"""SpecBlock's training against golden data of the authors' own code, and what packing and anchors
must not change.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, records, target_of

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.specblock import files
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.targets import weights as target_weights
from jaxspec.targets.families.hf_config import target_config
from training.drafters.specblock.forward import block_outputs, draw_cuts
from training.drafters.specblock.loss import (
    LATE,
    BlockOptions,
    block_losses,
    late_batches,
    make_specblock_loss,
)
from training.drafters.specblock.model import init_specblock
from training.drafters.specblock.slots import SlotLosses, keep_top, make_specblock_slot_losses
from training.loss.objective import LossOptions
from training.loss.teacher import compute_teacher_states

FOLDER = golden("specblock")
DATA = arrays("specblock", "train_forward.npz")
PAIRS = DATA["ids"].shape[1]
VOCABULARY = records("specblock", "draft", "config.json")["vocab_size"]


class Golden:
    """The authors' batch: `PAIRS` pairs a row, the last of which has a zero token and zero logits
    of the target after it.
    """

    def __init__(self):
        self.target_config: TargetConfig = target_config(
            json.loads((target_of("specblock") / "config.json").read_text())
        )
        config = files.config_from_hf(json.loads((FOLDER / "draft" / "config.json").read_text()))
        self.config = dataclasses.replace(files.for_target(config, self.target_config), rank_top=20)
        variables = files.read(FOLDER / "draft", self.config, "float32")
        self.params = {"params": variables["params"]}
        self.target = target_weights.from_hf(
            WeightFiles(target_of("specblock")), self.target_config
        )
        self.target |= {"draft": variables["draft"]}
        self.arrays = DATA
        ids = np.pad(self.arrays["ids"], ((0, 0), (0, 1))).astype(np.int32)
        whole = np.broadcast_to(np.arange(PAIRS + 1, dtype=np.int32), ids.shape)
        self.batch = {
            "tokens": ids,
            "positions": whole,
            "segments": np.ones_like(ids),
            "anchors": whole[:, 1:],
        }
        states = compute_teacher_states(
            self.target_config, self.target, self.config.feature_layers, self.batch
        )
        self.batch |= {
            "hidden": states.hidden.at[:, -1].set(0),
            "features": np.pad(self.arrays["hidden_3h"], ((0, 0), (0, 1), (0, 0))),
        }
        # The authors take the loss mask of the feature's token: two before what the first slot
        # predicts.
        masked = np.pad(self.arrays["loss_mask"], ((0, 0), (0, PAIRS))) > 0
        self.learnt = np.stack([masked[:, d : d + PAIRS] for d in range(PAIRS)], axis=-1)
        self.cases = json.loads((FOLDER / "train_loss.json").read_text())

        def objective(params, cuts, top):
            losses_of = make_specblock_slot_losses(
                self.config, self.target_config, LossOptions(tile=96), top=top, peers=True
            )
            cuts = jnp.broadcast_to(cuts, (len(ids), cuts.shape[0]))
            draft, rank = block_losses(
                losses_of(params, self.target, self.batch, cuts), self.learnt, cuts, BlockOptions()
            )
            return (draft * 0.8 ** jnp.arange(self.config.slots)).sum() + rank.sum(), (draft, rank)

        self.value = jax.jit(objective, static_argnums=2)
        self.value_and_grad = jax.jit(jax.value_and_grad(objective, has_aux=True), static_argnums=2)


@pytest.fixture(scope="module")
def recorded():
    return Golden()


@pytest.mark.slow
def test_outputs_of_chained_blocks(recorded):
    embedding, cuts = (
        recorded.target["params"]["embedding"],
        np.broadcast_to(
            recorded.arrays["M_cuts"], (len(recorded.arrays["ids"]), len(recorded.arrays["M_cuts"]))
        ),
    )
    outputs = jax.jit(
        lambda batch: block_outputs(
            recorded.config, recorded.params, embedding, batch, batch["features"], cuts, peers=True
        )
    )
    outputs = outputs(recorded.batch)
    for b in range(len(outputs)):
        expected = recorded.arrays[f"b{b}_draft_hidden"]
        np.testing.assert_allclose(outputs[b, : len(expected)], expected, atol=1e-4)


def check_losses(recorded, name, found):
    case = recorded.cases[name]
    total, (draft, rank) = found
    np.testing.assert_allclose(draft.sum(0), case["draft_losses"], rtol=1e-5)
    np.testing.assert_allclose(rank.sum(), case["rank_loss"], rtol=1e-5)
    np.testing.assert_allclose(total, case["total_loss_decay0p8"], rtol=1e-5)


@pytest.mark.parametrize(
    "name", ["full_vocab", "other_cuts", pytest.param("topk", marks=pytest.mark.slow)]
)
def test_losses(recorded, name):
    case = recorded.cases[name]
    top = None if case["draft_loss_topk"] < 0 else case["draft_loss_topk"]
    found = recorded.value(recorded.params, jnp.array(case["M_cuts"]), top)
    check_losses(recorded, name, found)
    alone = recorded.cases["phase1_before_rank_start"]  # the first block's share
    if top is None:
        np.testing.assert_allclose(found[1][0][0], alone["draft_losses"], rtol=1e-5)
        np.testing.assert_allclose(found[1][1][0], alone["rank_loss"], rtol=1e-5)


def test_ties_at_the_top_are_cut():
    uniform = jnp.full(8, 0.125)
    np.testing.assert_allclose(keep_top(uniform, 3), [0.125] * 3 + [0] * 5)
    np.testing.assert_allclose(keep_top(uniform, 99), uniform)
    np.testing.assert_allclose(keep_top(jnp.array([0.1, 0.4, 0.1, 0.4]), 3), [0.1, 0.4, 0, 0.4])


@pytest.mark.slow
def test_gradients(recorded):
    found, gradient = recorded.value_and_grad(
        recorded.params, jnp.array(recorded.cases["full_vocab"]["M_cuts"]), None
    )
    check_losses(recorded, "full_vocab", found)
    check_gradient(recorded, gradient)


def check_gradient(recorded, gradient):
    expected = arrays("specblock", "train_grads.npz")
    variables = gradient | {"draft": recorded.target["draft"]}
    found = {
        name: x
        for name, x in files.tensors(variables, recorded.config).items()
        if name not in ("d2t", "t2d")
    }
    assert {name.replace(".", "__") for name in found} == set(expected) - {"total"}
    for name, tensor in found.items():
        wanted = expected[name.replace(".", "__")]
        if tensor.size > 256:
            assert abs(np.linalg.norm(tensor) - wanted[0]) < 1e-3 * wanted[0] + 1e-5, name
            assert (
                abs(tensor.astype(np.float64).sum() - wanted[1])
                < 1e-3 * wanted[0] * np.sqrt(tensor.size) + 1e-5
            ), name
        else:
            np.testing.assert_allclose(tensor, wanted, atol=2e-4, rtol=1e-3, err_msg=name)


def packed(lengths, seed=0):
    """One row of documents of random tokens, three anchors in each."""
    rng, total = np.random.default_rng(seed), sum(lengths)
    ends = np.cumsum(lengths)
    anchors = np.concatenate(
        [end - n + np.array([1, 2, n - 3]) for end, n in zip(ends, lengths, strict=True)]
    )
    return {
        "tokens": rng.integers(0, VOCABULARY, (1, total)).astype(np.int32),
        "positions": np.concatenate([np.arange(n) for n in lengths])[None].astype(np.int32),
        "segments": np.repeat(np.arange(len(lengths)) + 1, lengths)[None].astype(np.int32),
        "loss_mask": np.ones((1, total), bool),
        "anchors": anchors[None].astype(np.int32),
        "keep": np.ones((1, len(anchors)), bool),
        "rows": np.zeros(1, np.int32),
        "cuts": np.array([2, 3], np.int32),
    }


@pytest.fixture(scope="module")
def loss_of(recorded):
    loss = jax.jit(
        make_specblock_loss(recorded.config, recorded.target_config, LossOptions(tile=36))
    )
    return lambda batch: loss(recorded.params, recorded.target, batch)


@pytest.mark.slow
def test_nothing_leaks_between_documents(recorded, loss_of):
    batch = packed((12, 16))
    # The last anchor of each document has two tokens behind it: further slots do not count.
    figures = loss_of(batch)
    assert [float(figures[f"accuracy_{k}"][1]) for k in (1, 2, 3, 4)] == [6, 6, 4, 4]
    for document, other in ((1, 2), (2, 1)):
        kept = batch | {"keep": (np.arange(6)[None] < 3) == (document == 1)}
        tokens = np.where(
            batch["segments"] == other, (batch["tokens"] + 7) % VOCABULARY, batch["tokens"]
        ).astype(np.int32)
        changed = loss_of(kept | {"tokens": tokens})["loss"]
        np.testing.assert_allclose(loss_of(kept)["loss"], changed, rtol=1e-5)
        assert abs(float(loss_of(batch)["loss"][0] - changed[0])) > 1e-3


@pytest.mark.thorough
def test_late_parts_wait_and_cuts_come_from_the_row(recorded, loss_of):
    batch = packed((12, 16))
    early = loss_of(batch | dict.fromkeys(LATE, np.zeros(1, np.float32)))
    late = loss_of(batch)
    assert float(early["rank"][0]) == 0 < float(late["rank"][0])
    assert 0 < float(early["loss"][0]) < float(late["draft"][0])
    waiting = late_batches(lambda step: batch, BlockOptions(rank_from=3, blocks_from=2))
    flags = [[float(waiting(step)[name][0]) for name in LATE] for step in (1, 2, 3)]
    assert flags == [[0, 0], [0, 1], [1, 1]]
    free = {
        name: np.repeat(x, 200, axis=0) for name, x in batch.items() if name in ("anchors", "rows")
    }
    free["rows"] = np.arange(200, dtype=np.int32)
    cuts = np.asarray(draw_cuts(free, 2, 4))
    assert np.bincount(cuts.ravel(), minlength=5)[1:].min() > 60
    half = {name: x[100:] for name, x in free.items()}
    np.testing.assert_array_equal(draw_cuts(half, 2, 4), cuts[100:])
    assert (np.asarray(draw_cuts(free | {"anchors": free["anchors"] + 1}, 2, 4)) != cuts).any()


def test_valid_prefixes_can_be_ablated():
    shape = (1, 1, 2, 2)
    flags = np.ones(shape, bool)
    hit = flags.copy()
    hit[0, 0, 1, 0] = False
    values = np.arange(4, dtype=np.float32).reshape(shape)
    losses = SlotLosses(
        values, hit, hit, flags, np.zeros(shape, np.int32), np.zeros((*shape, 4), np.float32)
    )
    learnt, cuts = np.ones((1, 2, 2), bool), np.zeros((1, 0), np.int32)
    for valid_prefix, expected in ((True, [[1, 1]]), (False, [[1, 2]])):
        block = BlockOptions(blocks=1, valid_prefix=valid_prefix)
        draft, _ = jax.jit(lambda losses, block=block: block_losses(losses, learnt, cuts, block))(
            losses
        )
        np.testing.assert_allclose(draft, expected)


@pytest.mark.slow
def test_first_weights(recorded):
    params = init_specblock(recorded.config, 0)
    assert jax.tree.map(jnp.shape, params) == jax.tree.map(jnp.shape, recorded.params)
    weight = params["params"]["shifts_0"]["kernel"]
    bound = len(weight) ** -0.5
    assert 0.9 * bound < np.abs(weight).max() <= bound


@pytest.mark.parametrize(
    ("options", "block", "match"),
    [
        (LossOptions(kind="ce"), BlockOptions(), "leave kind at fkl"),
        (LossOptions(temperature=0), BlockOptions(), "loss temperature is 0"),
        (LossOptions(), BlockOptions(blocks=0), "blocks is 0"),
        (LossOptions(), BlockOptions(decay=1.5), "decay is 1.5"),
    ],
)
def test_bad_options_are_refused(recorded, options, block, match):
    with pytest.raises(ValueError, match=match):
        make_specblock_loss(recorded.config, recorded.target_config, options, block)
