"""SpecBlock against golden data of the authors' own code: cached blocks, branches of branches and
rank features.
"""

import dataclasses
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.drafters.base import Committed, Nodes, TargetHead
from jaxspec.drafters.specblock import files
from jaxspec.drafters.specblock.config import SpecBlockConfig
from jaxspec.drafters.specblock.drafter import make_specblock_drafter
from jaxspec.drafters.specblock.network import SpecBlock, rank_features, slot_positions
from jaxspec.io.safetensors_files import WeightFiles
from jaxspec.targets.hf_config import target_config

GOLDEN = Path(__file__).parents[2] / "golden"
FOLDER = GOLDEN / "specblock"
TOLERANCE = 1e-4
ROWS = 4 + 2 * 5 * 4


class Golden:
    """The tiny target's embeddings, the drafter and its steps, compiled once."""

    def __init__(self):
        hf = json.loads((FOLDER / "draft" / "config.json").read_text())
        target = target_config(json.loads((GOLDEN / "tiny_llama" / "config.json").read_text()))
        self.config = files.for_target(files.config_from_hf(hf), target)
        self.params = files.read(FOLDER / "draft", self.config, "float32")
        self.ids = np.asarray(self.params["draft"]["ids"])
        table = jnp.asarray(WeightFiles(GOLDEN / "tiny_llama")["model.embed_tokens.weight"])
        self.head = TargetHead(lambda tokens: table[tokens], lambda hidden: hidden)
        self.drafter = make_specblock_drafter(self.config)
        self.arrays = np.load(FOLDER / "infer_ranktopk10.npz")
        self.module = SpecBlock(self.config)
        self.weights = {"params": self.params["params"]}
        self.init = lambda: self.drafter.init(1, 20, jnp.float32)
        self.absorb = jax.jit(
            lambda state, new: self.drafter.absorb(self.params, state, self.head, new)
        )
        self.start = jax.jit(
            lambda state, root: self.drafter.start(self.params, state, self.head, root, ROWS)
        )
        self.expand = jax.jit(
            lambda *args: self.drafter.expand(self.params, *args[:2], self.head, *args[2:])
        )
        self._rank_logits = jax.jit(self._rank, static_argnums=1)

    def _rank(self, hidden, top):
        normed = self.module.apply(self.weights, hidden, method="final")
        features = rank_features(self.module.apply(self.weights, normed, method="logits"), top)
        return features, self.module.apply(self.weights, normed, features, method="rank")

    def committed(self, first, count, rows=9):
        """`count` pairs from position `first`, filled up to `rows`."""
        ids, features = self.arrays["ids"], self.arrays["hidden_3h"]
        take = np.minimum(first + np.arange(rows), ids.shape[1] - 2)
        as_int = [jnp.asarray(x[:, at], jnp.int32) for x, at in ((ids, take), (ids, take + 1))]
        at, length = jnp.array([first], jnp.int32), jnp.array([count], jnp.int32)
        return Committed(*as_int, jnp.asarray(features[:, take]), at, length)

    def step(self, state, scratch, tokens, source, first):
        """A step of five nodes, of which those after the given ones are fillers."""
        fill = (0, 5 - len(tokens))
        tokens, source = (jnp.asarray(np.pad(x, fill), jnp.int32)[None] for x in (tokens, source))
        nodes = Nodes(tokens, source, 0 * tokens, 0 * tokens, tokens >= 0)
        proposal, scratch = self.expand(state, scratch, nodes, jnp.int32(first))
        return proposal, scratch, scratch.hidden[0, first : first + 20].reshape(5, 4, -1)

    def rank_logits(self, hidden, top=10):
        """Rank features and logits of outputs before the final norm."""
        return self._rank_logits(jnp.asarray(hidden), top)


@pytest.fixture(scope="module")
def golden():
    return Golden()


@pytest.fixture(scope="module")
def first_block(golden):
    state = golden.absorb(golden.init(), golden.committed(0, 9))
    return state, *golden.start(state, jnp.zeros(1, jnp.int32))


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


def check(golden, name, logits, hidden, classes, rows=slice(None)):
    """Logits [.., K, V], hidden states and classes of a block, in the golden arrays of `name`."""
    close(logits[..., golden.ids][rows], golden.arrays[f"{name}_logits"])
    close(hidden[rows], golden.arrays[f"{name}_draft_hidden"])
    _, ranks = golden.rank_logits(hidden[rows])
    close(ranks, golden.arrays[f"{name}_rank_logits"])
    np.testing.assert_array_equal(classes[rows], golden.arrays[f"{name}_rank_logits"].argmax(-1))


def test_first_block_and_cache(golden, first_block):
    state, proposal, scratch = first_block
    check(golden, "a", proposal.logits[:, 0], state.hidden, proposal.classes[:, 0])
    undrafted = np.setdiff1d(np.arange(257), golden.ids)
    assert np.all(np.isneginf(proposal.logits[..., undrafted]))
    assert int(state.cache.length[0]) == 36
    for layer in range(2):
        close(state.cache.k[layer][:, :, :36], golden.arrays[f"a_cache_k{layer}"])
        close(state.cache.v[layer][:, :, :36], golden.arrays[f"a_cache_v{layer}"])
        close(scratch.k[layer][:, :4].swapaxes(1, 2), golden.arrays[f"a_cache_k{layer}"][:, :, 32:])


@pytest.mark.parametrize("top", [10, 20])
def test_rank_features(golden, first_block, top):
    arrays = np.load(FOLDER / f"infer_ranktopk{top}.npz")
    features, logits = golden.rank_logits(first_block[0].hidden, top)
    close(features, arrays["a_rank_features"])
    close(logits, arrays["a_rank_logits"])


def test_branches_and_branches_of_branches(golden, first_block):
    state, _, scratch = first_block
    a = golden.arrays
    proposal, scratch, hidden = golden.step(state, scratch, a["b_tokens"], a["b_slots"], 4)
    check(golden, "b", proposal.logits[0], hidden, proposal.classes[0])
    proposal, _, hidden = golden.step(
        state, scratch, a["c_tokens"], 4 + 4 * a["c_leaf"] + a["c_slots"], 24
    )
    check(golden, "c", proposal.logits[0], hidden, proposal.classes[0], slice(2))


def test_committing_more_pairs(golden, first_block):
    state = golden.absorb(first_block[0], golden.committed(9, 4))
    proposal, _ = golden.start(state, jnp.zeros(1, jnp.int32))
    check(golden, "d", proposal.logits[:, 0], state.hidden, proposal.classes[:, 0])
    same = golden.absorb(first_block[0], golden.committed(9, 0))
    np.testing.assert_array_equal(same.hidden, first_block[0].hidden)
    np.testing.assert_array_equal(same.k, first_block[0].k)
    np.testing.assert_array_equal(same.cache.k[..., :36, :], first_block[0].cache.k[..., :36, :])
    assert int(same.cache.length[0]) == 36


def test_long_prompts_are_read_in_pieces(golden, first_block, monkeypatch):
    monkeypatch.setattr("jaxspec.drafters.specblock.drafter._CHUNK", 4)
    state = golden.drafter.absorb(
        golden.params, golden.init(), golden.head, golden.committed(0, 9, rows=12)
    )
    close(state.hidden, first_block[0].hidden)
    close(state.k, first_block[0].k)
    assert int(state.cache.length[0]) == 36


def test_ablations_take_away_what_they_name(golden):
    condition, tokens = jax.random.normal(jax.random.key(0), (2, 2, 3, 64))
    without = SpecBlock(dataclasses.replace(golden.config, prefix_broadcast=False, shift=False))
    variables = jax.eval_shape(
        without.init, jax.random.key(1), condition, tokens, slot_positions(jnp.arange(3)[None], 4)
    )
    assert "shifts_0" not in variables["params"]
    begin = [
        jax.jit(lambda c, t, m=m: m.apply(golden.weights, c, t, method="slots"))
        for m in (without, golden.module)
    ]
    slots, whole = (slots_of(condition, tokens).reshape(2, 3, 4, -1)[0] for slots_of in begin)
    np.testing.assert_allclose(slots[0, 1:], slots[1, 1:], atol=1e-6)  # the queries alone
    np.testing.assert_allclose(slots[:, 0], whole[:, 0], atol=1e-6)
    assert np.abs(whole[0, 1:] - whole[1, 1:]).max() > 0.1


def test_bad_sizes_are_refused(golden):
    with pytest.raises(ValueError, match="rank_top is 4: give 10 to 160"):
        make_specblock_drafter(dataclasses.replace(golden.config, rank_top=4))
    with pytest.raises(ValueError, match="slots is 0"):
        make_specblock_drafter(dataclasses.replace(golden.config, slots=0))
    assert isinstance(golden.config, SpecBlockConfig)
