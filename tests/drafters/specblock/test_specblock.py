"""SpecBlock against golden data of the authors' own code: cached blocks, branches of branches and
rank features.
"""

import dataclasses
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays, golden, target_of

from jaxspec.drafters.base import Committed, Nodes, TargetHead
from jaxspec.drafters.specblock import files
from jaxspec.drafters.specblock.drafter import make_specblock_drafter
from jaxspec.drafters.specblock.network import (
    SpecBlock,
    SpecBlockConfig,
    rank_features,
    slot_positions,
)
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.targets.families.hf_config import target_config

FOLDER = golden("specblock")
TOLERANCE = 1e-4


class Golden:
    """The tiny target's embeddings, the drafter and its steps, compiled once."""

    def __init__(self):
        hf = json.loads((FOLDER / "draft" / "config.json").read_text())
        target = target_config(json.loads((target_of("specblock") / "config.json").read_text()))
        self.config = files.for_target(files.config_from_hf(hf), target)
        self.params = files.read(FOLDER / "draft", self.config, "float32")
        self.ids = np.asarray(self.params["draft"]["ids"])
        table = jnp.asarray(WeightFiles(target_of("specblock"))["model.embed_tokens.weight"])
        self.head = TargetHead(lambda tokens: table[tokens], lambda hidden: hidden)
        self.drafter = make_specblock_drafter(self.config)
        self.arrays = arrays("specblock", "infer_ranktopk10.npz")
        # Pairs of the first and the second extension, nodes of a step (those after the recorded
        # ones are fillers) and slots of a node.
        self.first, self.second = (self.arrays[f"{name}_tokens"].shape[1] for name in "ad")
        self.width, self.slots = len(self.arrays["b_tokens"]), self.config.slots
        self.rows = self.slots * (1 + 2 * self.width)
        self.module = SpecBlock(self.config)
        self.weights = {"params": self.params["params"]}
        self.init = lambda: self.drafter.init(
            1, self.arrays["ids"].shape[1] + self.first, jnp.float32
        )
        self.absorb = jax.jit(
            lambda state, new: self.drafter.absorb(self.params, state, self.head, new)
        )
        self.start = jax.jit(
            lambda state, root: self.drafter.start(self.params, state, self.head, root, self.rows)
        )
        self.expand = jax.jit(
            lambda *args: self.drafter.expand(self.params, *args[:2], self.head, *args[2:])
        )
        self._rank_logits = jax.jit(self._rank, static_argnums=1)

    def _rank(self, hidden, top):
        normed = self.module.apply(self.weights, hidden, method="final")
        features = rank_features(self.module.apply(self.weights, normed, method="logits"), top)
        return features, self.module.apply(self.weights, normed, features, method="rank")

    def committed(self, first, count, rows=None):
        """`count` pairs from position `first`, filled up to `rows` (None: of the first extension)."""
        rows = rows or self.first
        ids, features = self.arrays["ids"], self.arrays["hidden_3h"]
        take = np.minimum(first + np.arange(rows), ids.shape[1] - 2)
        as_int = [jnp.asarray(x[:, at], jnp.int32) for x, at in ((ids, take), (ids, take + 1))]
        at, length = jnp.array([first], jnp.int32), jnp.array([count], jnp.int32)
        return Committed(*as_int, jnp.asarray(features[:, take]), at, length)

    def step(self, state, scratch, tokens, source, first):
        """A step, of whose nodes those after the given ones are fillers."""
        fill = (0, self.width - len(tokens))
        tokens, source = (jnp.asarray(np.pad(x, fill), jnp.int32)[None] for x in (tokens, source))
        nodes = Nodes(tokens, source, 0 * tokens, 0 * tokens, tokens >= 0)
        proposal, scratch = self.expand(state, scratch, nodes, jnp.int32(first))
        return (
            proposal,
            scratch,
            scratch.hidden[0, first : first + self.width * self.slots].reshape(
                self.width, self.slots, -1
            ),
        )

    def rank_logits(self, hidden, top=10):
        """Rank features and logits of outputs before the final norm."""
        return self._rank_logits(jnp.asarray(hidden), top)


@pytest.fixture(scope="module")
def recorded():
    return Golden()


@pytest.fixture(scope="module")
def first_block(recorded):
    state = recorded.absorb(recorded.init(), recorded.committed(0, recorded.first))
    return state, *recorded.start(state, jnp.zeros(1, jnp.int32))


def close(found, expected):
    np.testing.assert_allclose(found, expected, atol=TOLERANCE, rtol=0)


def check(recorded, name, logits, hidden, classes, rows=slice(None)):
    """Logits [.., K, V], hidden states and classes of a block, in the recorded arrays of `name`."""
    close(logits[..., recorded.ids][rows], recorded.arrays[f"{name}_logits"])
    close(hidden[rows], recorded.arrays[f"{name}_draft_hidden"])
    _, ranks = recorded.rank_logits(hidden[rows])
    close(ranks, recorded.arrays[f"{name}_rank_logits"])
    np.testing.assert_array_equal(classes[rows], recorded.arrays[f"{name}_rank_logits"].argmax(-1))


def test_first_block_and_cache(recorded, first_block):
    state, proposal, scratch = first_block
    check(recorded, "a", proposal.logits[:, 0], state.hidden, proposal.classes[:, 0])
    undrafted = np.setdiff1d(np.arange(recorded.config.vocab_size), recorded.ids)
    assert np.all(np.isneginf(proposal.logits[..., undrafted]))
    rows, slots = recorded.first * recorded.slots, recorded.slots
    assert int(state.cache.length[0]) == rows
    for layer in range(recorded.config.num_layers):
        close(state.cache.k[0][layer][:, :, :rows], recorded.arrays[f"a_cache_k{layer}"])
        close(state.cache.v[0][layer][:, :, :rows], recorded.arrays[f"a_cache_v{layer}"])
        close(
            scratch.k[0][layer][:, :slots].swapaxes(1, 2),
            recorded.arrays[f"a_cache_k{layer}"][:, :, -slots:],
        )


@pytest.mark.parametrize("top", [10, 20])
def test_rank_features(recorded, first_block, top):
    wanted = arrays("specblock", f"infer_ranktopk{top}.npz")
    features, logits = recorded.rank_logits(first_block[0].hidden, top)
    close(features, wanted["a_rank_features"])
    close(logits, wanted["a_rank_logits"])


def test_branches_and_branches_of_branches(recorded, first_block):
    state, _, scratch = first_block
    a, slots = recorded.arrays, recorded.slots
    proposal, scratch, hidden = recorded.step(state, scratch, a["b_tokens"], a["b_slots"], slots)
    check(recorded, "b", proposal.logits[0], hidden, proposal.classes[0])
    proposal, _, hidden = recorded.step(
        state,
        scratch,
        a["c_tokens"],
        slots * (1 + a["c_leaf"]) + a["c_slots"],
        slots * (1 + recorded.width),
    )
    check(recorded, "c", proposal.logits[0], hidden, proposal.classes[0], slice(len(a["c_tokens"])))


def test_committing_more_pairs(recorded, first_block):
    state = recorded.absorb(first_block[0], recorded.committed(recorded.first, recorded.second))
    proposal, _ = recorded.start(state, jnp.zeros(1, jnp.int32))
    check(recorded, "d", proposal.logits[:, 0], state.hidden, proposal.classes[:, 0])
    rows = recorded.first * recorded.slots
    same = recorded.absorb(first_block[0], recorded.committed(recorded.first, 0))
    np.testing.assert_array_equal(same.hidden, first_block[0].hidden)
    np.testing.assert_array_equal(same.k, first_block[0].k)
    np.testing.assert_array_equal(
        same.cache.k[0][..., :rows, :], first_block[0].cache.k[0][..., :rows, :]
    )
    assert int(same.cache.length[0]) == rows


def test_long_prompts_are_read_in_pieces(recorded, first_block, monkeypatch):
    monkeypatch.setattr("jaxspec.drafters.specblock.drafter._CHUNK", 4)
    state = recorded.drafter.absorb(
        recorded.params,
        recorded.init(),
        recorded.head,
        recorded.committed(0, recorded.first, rows=recorded.first + 3),
    )
    close(state.hidden, first_block[0].hidden)
    close(state.k, first_block[0].k)
    assert int(state.cache.length[0]) == recorded.first * recorded.slots


def test_ablations_take_away_what_they_name(recorded):
    condition, tokens = jax.random.normal(jax.random.key(0), (2, 2, 3, recorded.config.hidden_size))
    without = SpecBlock(dataclasses.replace(recorded.config, prefix_broadcast=False, shift=False))
    variables = jax.eval_shape(
        without.init,
        jax.random.key(1),
        condition,
        tokens,
        slot_positions(jnp.arange(3)[None], recorded.slots),
    )
    assert "shifts_0" not in variables["params"]
    begin = [
        jax.jit(lambda c, t, m=m: m.apply(recorded.weights, c, t, method="slots"))
        for m in (without, recorded.module)
    ]
    slots, whole = (
        slots_of(condition, tokens).reshape(2, 3, recorded.slots, -1)[0] for slots_of in begin
    )
    np.testing.assert_allclose(slots[0, 1:], slots[1, 1:], atol=1e-6)  # the queries alone
    np.testing.assert_allclose(slots[:, 0], whole[:, 0], atol=1e-6)
    assert np.abs(whole[0, 1:] - whole[1, 1:]).max() > 0.1


def test_bad_sizes_are_refused(recorded):
    with pytest.raises(ValueError, match="rank_top is 4: give 10 to "):
        make_specblock_drafter(dataclasses.replace(recorded.config, rank_top=4))
    with pytest.raises(ValueError, match="slots is 0"):
        make_specblock_drafter(dataclasses.replace(recorded.config, slots=0))
    assert isinstance(recorded.config, SpecBlockConfig)
