"""DSpark's whole objective and its gradients against DeepSpec's own training step, for all heads."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from golden_data import arrays, golden
from slow_cases import mark_thorough, slow_except

import jaxspec
from training.drafters.dflash.forward import block_hidden
from training.drafters.dspark.loss import DSparkOptions, make_dspark_loss
from training.loss.objective import LossOptions

KINDS = ("vanilla", "gated", "rnn", "dflash")
LEAVES = {
    "fc.weight": ("backbone", "fc", "kernel"),
    "markov_head.markov_w1.weight": ("markov", "w1"),
    "markov_head.markov_w2.weight": ("markov", "w2", "kernel"),
    "confidence_head.proj.weight": ("confidence_head", "proj", "kernel"),
}


class Case:
    """The golden training step of one kind of head."""

    def __init__(self, kind: str):
        self.kind, self.data = kind, arrays("dspark", "training.npz")
        self.known = {}
        self.bundle = jaxspec.load(
            golden("dspark", "target"),
            drafter={"dspark": golden("dspark", f"draft_{kind}")},
            dtype="float32",
        )
        self.config = self.bundle.spec.drafter("dspark")
        self.params = self.bundle.drafters["dspark"]
        tokens = self.data["input_ids"]
        self.batch = {
            "tokens": tokens,
            "positions": np.broadcast_to(np.arange(tokens.shape[1], dtype=np.int32), tokens.shape),
            "segments": np.ones_like(tokens),
            "loss_mask": self.data["loss_mask"] > 0,
            "anchors": self.data["anchors"],
            "keep": self.data["keep"],
            "features": self.data["target_features"],
            "hidden": self.data["target_last_hidden"],
        }

    def expected(self, name: str):
        return self.data[name if self.kind == "vanilla" else f"{self.kind}_{name}"]

    def run(self, own: DSparkOptions, *, tile: int = 37, freeze: bool = False):
        """The mean loss, the sums and the gradient, which are computed once."""
        key = repr(own), tile, freeze
        if key not in self.known:
            self.known[key] = self.compute(own, tile, freeze)
        return self.known[key]

    def compute(self, own: DSparkOptions, tile: int, freeze: bool):
        options = LossOptions(tile=tile, gamma=float(self.data["gamma"]))
        loss = make_dspark_loss(self.config, self.bundle.spec.target, options, own)
        params, frozen = self.params["params"], self.bundle.target
        if freeze:
            frozen = frozen | {"backbone": params["backbone"]}
            params = {name: leaves for name, leaves in params.items() if name != "backbone"}

        def mean(params):
            sums = loss({"params": params}, frozen, self.batch)
            return sums["loss"][0] / sums["loss"][1], sums

        (value, sums), gradient = jax.jit(jax.value_and_grad(mean, has_aux=True))(params)
        return value, sums, gradient


case_of = functools.cache(Case)


@pytest.mark.parametrize(
    "kind", mark_thorough(["rnn"], slow_except(["vanilla", "rnn", "dflash"], KINDS))
)
def test_the_objective_and_its_gradient(kind):
    case = case_of(kind)
    value, sums, gradient = case.run(DSparkOptions())
    np.testing.assert_allclose(value, case.expected("loss_dspark"), atol=5e-6)
    for name in ("ce", "l1", "confidence") if case.config.confidence else ("ce", "l1"):
        for found, part in zip(sums[name], ("num", "den"), strict=True):
            expected = case.expected(f"dspark_{name}_loss_{part}")
            np.testing.assert_allclose(found, expected, rtol=1e-5, err_msg=name)
    if kind == "vanilla":
        length, blocks = sums["accept_length_sampled"]
        np.testing.assert_allclose(length / blocks, case.data["tau_probabilistic"], atol=1e-5)
    norm = optax.tree.norm(gradient)
    np.testing.assert_allclose(norm, case.expected("grad_norm_dspark"), rtol=1e-4)
    for name, path in LEAVES.items():
        leaf = functools.reduce(lambda tree, key: tree.get(key, {}), path, gradient)
        if isinstance(leaf, jax.Array):
            expected = case.expected(f"gradnorm.{name}")
            np.testing.assert_allclose(jnp.linalg.norm(leaf), expected, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("kind", slow_except(["vanilla"], KINDS))
def test_cross_entropy_alone(kind):
    case = case_of(kind)
    value, sums, _ = case.run(DSparkOptions(ce=1, l1=0, confidence=0))
    np.testing.assert_allclose(value, case.expected("loss_ce"), atol=5e-6)
    assert not case.config.confidence or sums["confidence"][0] > 0  # reported, not learnt


@pytest.mark.parametrize("tile", slow_except([37], [1, 37]))
@pytest.mark.thorough
def test_tiles_change_nothing(tile):
    """One tile of all rows, and tiles that do not divide them: the same loss and gradient."""
    case = case_of("gated")
    whole, _, expected = case.run(DSparkOptions(kl=0.3), tile=1000)
    value, _, gradient = case.run(DSparkOptions(kl=0.3), tile=tile)
    np.testing.assert_allclose(value, whole, rtol=1e-6)
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=2e-6), gradient, expected)


@pytest.mark.parametrize("kind", slow_except(["rnn"], ["vanilla", "gated", "rnn"]))
def test_a_frozen_backbone_changes_no_gradient_of_the_heads(kind):
    case = case_of(kind)
    whole, _, expected = case.run(DSparkOptions())
    value, _, gradient = case.run(DSparkOptions(), freeze=True)
    np.testing.assert_allclose(value, whole, rtol=1e-6)
    assert set(gradient) == {"markov", "confidence_head"}
    expected = {name: expected[name] for name in gradient}
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=1e-6), gradient, expected)


def test_blocks_see_what_the_reference_masks_allow():
    """Which hidden states move when one context feature, or one anchor, moves: the mask's rows."""
    case = case_of("vanilla")
    data, (rows, length) = case.data, case.data["input_ids"].shape
    blocks, size = data["anchors"].shape[1], case.config.block_size
    params = {"params": case.params["params"]["backbone"]}
    embedding = case.bundle.target["params"]["embedding"]

    @jax.jit
    def hidden_of(tokens, features):
        batch = {name: case.batch[name] for name in ("positions", "anchors")}
        return block_hidden(case.config, params, embedding, batch | {"tokens": tokens}, features)

    tokens, features = jnp.asarray(data["input_ids"]), jnp.asarray(data["target_features"])
    before = hidden_of(tokens, features)
    seen = np.zeros((rows, blocks, size, length), bool)
    for j in range(length):
        after = hidden_of(tokens, features.at[:, j].add(1.0))
        seen[..., j] = (after != before).any(-1)
    expected = data["attn_mask"].reshape(rows, blocks, size, -1)
    keep = data["keep"]
    np.testing.assert_array_equal(seen[keep], expected[..., :length][keep])
    # A block's slots see that block alone, all of it.
    own = np.eye(blocks, dtype=bool)[None, :, None, :, None]
    inside = expected[..., length:].reshape(rows, blocks, size, blocks, size)
    np.testing.assert_array_equal(inside[keep], np.broadcast_to(own, inside.shape)[keep])
    for a in range(blocks):
        place = jnp.arange(rows), data["anchors"][:, a]
        after = hidden_of(
            tokens.at[place].set((tokens[place] + 1) % case.config.mask_token_id), features
        )
        moved = (after != before).any(-1)
        same = data["anchors"] == data["anchors"][:, a : a + 1]
        np.testing.assert_array_equal(moved, np.broadcast_to(same[..., None], moved.shape))
