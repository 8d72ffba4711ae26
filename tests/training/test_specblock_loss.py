"""SpecBlock's training against golden data of the authors' own code, and what packing and anchors must not change."""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.config import TargetConfig
from jaxspec.io import specblock as files
from jaxspec.io import target_weights
from jaxspec.io.hf_config import target_config
from jaxspec.io.safetensors_files import WeightFiles
from training.drafter_loss import LossOptions
from training.specblock_forward import block_outputs, draw_cuts
from training.specblock_loss import (
    BlockOptions,
    block_losses,
    heads_only,
    init_specblock,
    late_batches,
    make_specblock_loss,
)
from training.specblock_slots import make_slot_losses
from training.teacher import teacher_states

GOLDEN = Path(__file__).parents[1] / "golden"
FOLDER = GOLDEN / "specblock"
PAIRS = 12


class Golden:
    """The authors' batch: 12 pairs a row, the last of which has a zero token and zero logits of the target after it."""

    def __init__(self):
        self.target_config: TargetConfig = target_config(json.loads((GOLDEN / "tiny_llama" / "config.json").read_text()))
        config = files.config_from_hf(json.loads((FOLDER / "draft" / "config.json").read_text()))
        self.config = dataclasses.replace(files.for_target(config, self.target_config), rank_top=20)
        variables = files.read(FOLDER / "draft", self.config, "float32")
        self.params = {"params": variables["params"]}
        self.target = target_weights.from_hf(WeightFiles(GOLDEN / "tiny_llama"), self.target_config)
        self.target |= {"draft": variables["draft"]}
        self.arrays = np.load(FOLDER / "train_forward.npz")
        ids = np.pad(self.arrays["ids"], ((0, 0), (0, 1))).astype(np.int32)
        whole = np.broadcast_to(np.arange(PAIRS + 1, dtype=np.int32), ids.shape)
        self.batch = {"tokens": ids, "positions": whole, "segments": np.ones_like(ids), "anchors": whole[:, 1:]}
        states = teacher_states(self.target_config, self.target, self.config.feature_layers, self.batch)
        self.batch |= {
            "hidden": states.hidden.at[:, -1].set(0),
            "features": np.pad(self.arrays["hidden_3h"], ((0, 0), (0, 1), (0, 0))),
        }
        # The authors take the loss mask of the feature's token: two before what the first slot predicts.
        masked = np.pad(self.arrays["loss_mask"], ((0, 0), (0, PAIRS))) > 0
        self.learnt = np.stack([masked[:, d : d + PAIRS] for d in range(PAIRS)], axis=-1)
        self.cases = json.loads((FOLDER / "train_loss.json").read_text())

        def objective(params, cuts, top):
            losses_of = make_slot_losses(self.config, self.target_config, LossOptions(tile=37), top=top, peers=True)
            cuts = jnp.broadcast_to(cuts, (2, cuts.shape[0]))
            draft, rank = block_losses(losses_of(params, self.target, self.batch, cuts), self.learnt, cuts, BlockOptions())
            return (draft * 0.8 ** jnp.arange(4)).sum() + rank.sum(), (draft, rank)

        self.value_and_grad = jax.jit(jax.value_and_grad(objective, has_aux=True), static_argnums=2)


@pytest.fixture(scope="module")
def golden():
    return Golden()


def test_outputs_of_chained_blocks(golden):
    embedding, cuts = golden.target["params"]["embedding"], np.broadcast_to(golden.arrays["M_cuts"], (2, 2))
    outputs = jax.jit(
        lambda batch: block_outputs(golden.config, golden.params, embedding, batch, batch["features"], cuts, peers=True)
    )
    outputs = outputs(golden.batch)
    for b in range(3):
        expected = golden.arrays[f"b{b}_draft_hidden"]
        np.testing.assert_allclose(outputs[b, : len(expected)], expected, atol=1e-4)


@pytest.mark.parametrize("name", ["full_vocab", "topk", "other_cuts"])
def test_losses(golden, name):
    case = golden.cases[name]
    top = None if case["draft_loss_topk"] < 0 else case["draft_loss_topk"]
    (total, (draft, rank)), gradient = golden.value_and_grad(golden.params, jnp.array(case["M_cuts"]), top)
    np.testing.assert_allclose(draft.sum(0), case["draft_losses"], rtol=1e-5)
    np.testing.assert_allclose(rank.sum(), case["rank_loss"], rtol=1e-5)
    np.testing.assert_allclose(total, case["total_loss_decay0p8"], rtol=1e-5)
    if name == "full_vocab":
        check_gradient(golden, gradient)
        alone = golden.cases["phase1_before_rank_start"]  # the first block's share
        np.testing.assert_allclose(draft[0], alone["draft_losses"], rtol=1e-5)
        np.testing.assert_allclose(rank[0], alone["rank_loss"], rtol=1e-5)


def check_gradient(golden, gradient):
    expected = np.load(FOLDER / "train_grads.npz")
    variables = gradient | {"draft": golden.target["draft"]}
    found = {name: x for name, x in files.tensors(variables, golden.config).items() if name not in ("d2t", "t2d")}
    assert {name.replace(".", "__") for name in found} == set(expected) - {"total"}
    for name, tensor in found.items():
        wanted = expected[name.replace(".", "__")]
        if tensor.size > 256:
            assert abs(np.linalg.norm(tensor) - wanted[0]) < 1e-3 * wanted[0] + 1e-5, name
            assert abs(tensor.astype(np.float64).sum() - wanted[1]) < 1e-3 * wanted[0] * np.sqrt(tensor.size) + 1e-5, name
        else:
            np.testing.assert_allclose(tensor, wanted, atol=2e-4, rtol=1e-3, err_msg=name)
