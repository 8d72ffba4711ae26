"""Medusa's objective against the reference's losses per head, and learning."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, target_of

import jaxspec
from jaxspec.drafters.medusa import files as medusa
from jaxspec.drafters.medusa import hf_config as medusa_config
from jaxspec.drafters.medusa.network import Medusa, make_medusa_drafter
from jaxspec.io.files.json_files import read_json
from training.drafters.medusa import init_medusa, make_medusa_loss
from training.loss.objective import LossOptions


class Case:
    """The golden heads over the recorded texts, every token but the first an anchor."""

    def __init__(self):
        folder = golden("medusa", "draft")
        bundle = jaxspec.load(target_of("medusa"), dtype="float32")
        self.target_config, self.target = bundle.spec.target, bundle.target
        self.config = medusa_config.for_target(
            medusa_config.config_from_hf(read_json(folder / "config.json")), self.target_config
        )
        self.params, self.data = (
            medusa.read(folder, self.config, "float32"),
            arrays("medusa", "heads.npz"),
        )
        tokens = self.data["ids"].astype(np.int32)
        count, length = tokens.shape
        anchors = np.broadcast_to(np.arange(1, length, dtype=np.int32), (count, length - 1))
        self.batch = {
            "tokens": tokens,
            "segments": np.ones_like(tokens),
            "positions": np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape),
            "loss_mask": self.data["labels"] != -100,
            "anchors": anchors,
            "keep": np.ones(anchors.shape, bool),
        }


@pytest.fixture(scope="module")
def case():
    return Case()


def test_logits_and_state(case):
    """The heads' logits for the last four rows, and that a bundle that absorbed the text proposes
    the last row's.
    """
    hidden = jnp.asarray(case.data["last_hidden"])
    model = Medusa(case.config)
    rows = case.data["head_logits"].shape[2]
    last = model.apply(case.params, hidden[:, -rows:])
    logits = model.apply(case.params, last, method="logits")
    np.testing.assert_allclose(logits.transpose(2, 0, 1, 3), case.data["head_logits"], atol=1e-4)
    drafter = make_medusa_drafter(case.config)
    assert drafter.depth == drafter.slots == case.config.heads


@pytest.mark.parametrize("gamma", [0.01, pytest.param(None, marks=pytest.mark.slow)])
def test_losses_of_the_heads(case, gamma):
    """All heads together, and with a steep decay the first alone; a tile that does not divide the
    rows.
    """
    loss = jax.jit(
        make_medusa_loss(case.config, case.target_config, LossOptions("ce", gamma=gamma, tile=5))
    )
    found = loss(case.params, case.target, case.batch)
    learnt = case.data["labels"] != -100
    counts = np.array([learnt[:, 2 + i :].sum() for i in range(case.config.heads)])
    weights = counts if gamma is None else counts * (np.arange(len(counts)) == 0)
    np.testing.assert_allclose(
        found["loss"], ((case.data["losses"] * weights).sum(), weights.sum()), rtol=1e-5
    )


@pytest.mark.slow
@pytest.mark.parametrize("own", [True, False])
def test_loss_falls(case, own):
    """With heads of their own projection and with the target's, towards the target's
    distribution.
    """
    config = medusa_config.for_target(
        type(case.config)(
            case.config.hidden_size, 2, own_projection=own, vocab_size=case.config.vocab_size
        ),
        case.target_config,
    )
    loss, params = (
        make_medusa_loss(config, case.target_config, LossOptions("fkl")),
        init_medusa(config, 0),
    )

    def mean(params):
        total, weight = loss(params, case.target, case.batch)["loss"]
        return total / weight

    step = jax.jit(
        lambda p: (
            mean(p),
            jax.tree.map(lambda leaf, slope: leaf - 0.3 * slope, p, jax.grad(mean)(p)),
        )
    )
    values = []
    for _ in range(8):
        value, params = step(params)
        values.append(float(value))
    assert values[-1] < values[0] - 0.05


def test_options_out_of_range(case):
    with pytest.raises(ValueError, match="gamma is 0: give a number above 0, or None"):
        make_medusa_loss(case.config, case.target_config, LossOptions(gamma=0))
    with pytest.raises(ValueError, match="loss temperature is 0"):
        make_medusa_loss(case.config, case.target_config, LossOptions(temperature=0))
