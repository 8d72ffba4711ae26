"""EAGLE-3's drafter against two successive tree builds of the authors' own code."""

import dataclasses
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.drafters.base import Committed, Nodes, TargetHead
from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.eagle3.drafter import make_eagle_drafter
from jaxspec.io.safetensors_files import WeightFiles, read_json

GOLDEN = Path(__file__).parents[2] / "golden"
WIDTH, STEPS, ROWS = (
    4,
    3,
    9,
)  # nodes of a level and levels that were recorded; rows of the first extension
TOLERANCE = 2e-5


class Golden:
    """The drafter, its bundle's functions compiled once, and the recorded arrays."""

    def __init__(self):
        folder = GOLDEN / "eagle3" / "draft"
        self.config = dataclasses.replace(
            eagle.config_from_hf(read_json(folder / "config.json")), feature_layers=(1, 3, 4)
        )
        self.arrays = np.load(GOLDEN / "eagle3" / "infer.npz")
        params = eagle.read(folder, self.config, "float32")
        self.ids = np.asarray(params["draft"]["ids"])
        table = jnp.asarray(WeightFiles(GOLDEN / "tiny_llama")["model.embed_tokens.weight"])
        target = TargetHead(lambda tokens: table[tokens], None)
        self.drafter = make_eagle_drafter(self.config)
        self.absorb = jax.jit(lambda state, new: self.drafter.absorb(params, state, target, new))
        self.start = jax.jit(
            lambda state: self.drafter.start(
                params, state, target, jnp.zeros(1, jnp.int32), 1 + STEPS * WIDTH
            )
        )
        self.expand = jax.jit(
            lambda *args: self.drafter.expand(params, *args[:2], target, *args[2:])
        )

    def committed(self, first: int, count: int) -> Committed:
        """Pairs `first` to `first + count`, with garbage behind them."""
        tokens, features = self.arrays["ids"], self.arrays["hidden_3h"]
        rows = np.minimum(first + np.arange(ROWS), tokens.shape[1] - 2)
        return Committed(
            tokens[:, rows],
            tokens[:, rows + 1],
            features[:, rows],
            jnp.array([first]),
            jnp.array([count]),
        )

    def check_logits(self, proposal, wanted):
        logits = np.asarray(proposal.logits[:, :, 0])
        np.testing.assert_allclose(logits[..., self.ids], wanted, atol=TOLERANCE)
        assert np.isneginf(np.delete(logits, self.ids, axis=-1)).all()

    def check_build(self, name: str, state):
        """One round: the root's proposal, then three levels of four nodes."""
        pairs = int(state.cache.length[0])
        last = self.arrays[f"{name}_call0_out"].shape[1] - 1
        np.testing.assert_allclose(
            state.hidden, self.arrays[f"{name}_call0_out"][:, last], atol=TOLERANCE
        )
        for held, wanted in ((state.cache.k, "stable_k"), (state.cache.v, "stable_v")):
            np.testing.assert_allclose(
                held[0, :, :, :pairs], self.arrays[f"{name}_{wanted}"], atol=TOLERANCE
            )
        proposal, scratch = self.start(state)
        self.check_logits(proposal, self.arrays[f"{name}_call0_logits"][:, last:])
        for step in range(1, STEPS + 1):
            call = {
                key: self.arrays[f"{name}_call{step}_{key}"]
                for key in ("tokens", "pos", "tree_mask", "out", "logits")
            }
            nodes = self.nodes(call, step, pairs)
            wanted = self.arrays[f"{name}_call{step}_hidden_in"]
            np.testing.assert_allclose(scratch.hidden[:, nodes.source[0]], wanted, atol=TOLERANCE)
            first = 1 + (step - 1) * WIDTH
            proposal, scratch = self.expand(state, scratch, nodes, jnp.asarray(first))
            np.testing.assert_allclose(
                scratch.hidden[:, first : first + WIDTH], call["out"], atol=TOLERANCE
            )
            self.check_logits(proposal, call["logits"])

    @staticmethod
    def nodes(call, step: int, pairs: int) -> Nodes:
        """The nodes of a recorded level, whose parents the mask tells."""
        above = (
            call["tree_mask"][0, 0, :, WIDTH * (step - 2) : WIDTH * (step - 1)]
            if step > 1
            else None
        )
        source = (
            np.zeros((1, WIDTH)) if step == 1 else 1 + WIDTH * (step - 2) + above.argmax(-1)[None]
        )
        depth = call["pos"][None] - pairs + 1
        return Nodes(
            *(jnp.asarray(x, jnp.int32) for x in (call["tokens"], source, depth, source)),
            jnp.ones((1, WIDTH), bool),
        )


@pytest.fixture(scope="module")
def golden():
    return Golden()


def test_two_successive_builds(golden):
    state = golden.absorb(golden.drafter.init(1, 32, jnp.float32), golden.committed(0, 9))
    golden.check_build("it0", state)
    state = golden.absorb(state, golden.committed(9, 4))
    golden.check_build("it1", state)


def test_nothing_committed_changes_nothing(golden):
    state = golden.absorb(golden.drafter.init(1, 32, jnp.float32), golden.committed(0, 9))
    again = golden.absorb(state, golden.committed(9, 0))
    np.testing.assert_array_equal(again.hidden, state.hidden)
    assert int(again.cache.length[0]) == 9
    golden.check_build("it0", again)
