"""EAGLE-3's drafter against two successive tree builds of the authors' own code."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import ROOT, arrays, golden, numbers, records, target_of

from jaxspec.drafters.base import Committed, Nodes, TargetHead
from jaxspec.drafters.eagle3 import files as eagle
from jaxspec.drafters.eagle3 import hf_config as eagle_config
from jaxspec.drafters.eagle3.drafter import make_eagle_drafter
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.targets.families.hf_config import target_config

TOLERANCE = 2e-5


class Golden:
    """The drafter, its bundle's functions compiled once, and the recorded arrays."""

    def __init__(self):
        folder = golden("eagle3", "draft")
        target = target_config(records(*target_of("eagle3").relative_to(ROOT).parts, "config.json"))
        self.config = eagle_config.for_target(
            eagle_config.config_from_hf(read_json(folder / "config.json")), target
        )
        self.arrays = arrays("eagle3", "infer.npz")
        # Levels that were recorded and their nodes; rows of the first extension.
        self.steps = max(numbers(self.arrays, "it0_call", "_tokens"))
        self.width = self.arrays["it0_call1_tokens"].shape[1]
        self.rows = self.arrays["it0_call0_out"].shape[1]
        self.second = self.arrays["it1_call0_out"].shape[1]
        params = eagle.read(folder, self.config, "float32")
        self.ids = np.asarray(params["draft"]["ids"])
        table = jnp.asarray(WeightFiles(target_of("eagle3"))["model.embed_tokens.weight"])
        head = TargetHead(lambda tokens: table[tokens], None)
        self.drafter = make_eagle_drafter(self.config)
        self.absorb = jax.jit(lambda state, new: self.drafter.absorb(params, state, head, new))
        self.start = jax.jit(
            lambda state: self.drafter.start(
                params, state, head, jnp.zeros(1, jnp.int32), 1 + self.steps * self.width
            )
        )
        self.expand = jax.jit(lambda *args: self.drafter.expand(params, *args[:2], head, *args[2:]))

    def fresh(self):
        """A state with room for all pairs."""
        return self.drafter.init(1, self.arrays["ids"].shape[1] + self.rows, jnp.float32)

    def committed(self, first: int, count: int) -> Committed:
        """Pairs `first` to `first + count`, with garbage behind them."""
        tokens, features = self.arrays["ids"], self.arrays["hidden_3h"]
        rows = np.minimum(first + np.arange(self.rows), tokens.shape[1] - 2)
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
        """One round: the root's proposal, then the recorded levels."""
        pairs = int(state.cache.length[0])
        last = self.arrays[f"{name}_call0_out"].shape[1] - 1
        np.testing.assert_allclose(
            state.hidden, self.arrays[f"{name}_call0_out"][:, last], atol=TOLERANCE
        )
        for held, wanted in ((*state.cache.k, "stable_k"), (*state.cache.v, "stable_v")):
            np.testing.assert_allclose(
                held[0, :, :, :pairs], self.arrays[f"{name}_{wanted}"], atol=TOLERANCE
            )
        proposal, scratch = self.start(state)
        self.check_logits(proposal, self.arrays[f"{name}_call0_logits"][:, last:])
        for step in range(1, self.steps + 1):
            call = {
                key: self.arrays[f"{name}_call{step}_{key}"]
                for key in ("tokens", "pos", "tree_mask", "out", "logits")
            }
            nodes = self.nodes(call, step, pairs)
            wanted = self.arrays[f"{name}_call{step}_hidden_in"]
            np.testing.assert_allclose(scratch.hidden[:, nodes.source[0]], wanted, atol=TOLERANCE)
            first = 1 + (step - 1) * self.width
            proposal, scratch = self.expand(state, scratch, nodes, jnp.asarray(first))
            np.testing.assert_allclose(
                scratch.hidden[:, first : first + self.width], call["out"], atol=TOLERANCE
            )
            self.check_logits(proposal, call["logits"])

    def nodes(self, call, step: int, pairs: int) -> Nodes:
        """The nodes of a recorded level, whose parents the mask tells."""
        above = (
            call["tree_mask"][0, 0, :, self.width * (step - 2) : self.width * (step - 1)]
            if step > 1
            else None
        )
        source = (
            np.zeros((1, self.width))
            if step == 1
            else 1 + self.width * (step - 2) + above.argmax(-1)[None]
        )
        depth = call["pos"][None] - pairs + 1
        return Nodes(
            *(jnp.asarray(x, jnp.int32) for x in (call["tokens"], source, depth, source)),
            jnp.ones((1, self.width), bool),
        )


@pytest.fixture(scope="module")
def recorded():
    return Golden()


def test_two_successive_builds(recorded):
    state = recorded.absorb(recorded.fresh(), recorded.committed(0, recorded.rows))
    recorded.check_build("it0", state)
    state = recorded.absorb(state, recorded.committed(recorded.rows, recorded.second))
    recorded.check_build("it1", state)


def test_nothing_committed_changes_nothing(recorded):
    state = recorded.absorb(recorded.fresh(), recorded.committed(0, recorded.rows))
    again = recorded.absorb(state, recorded.committed(recorded.rows, 0))
    np.testing.assert_array_equal(again.hidden, state.hidden)
    assert int(again.cache.length[0]) == recorded.rows
    recorded.check_build("it0", again)
