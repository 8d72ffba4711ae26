"""SpecBlock's recipe as the paper has it: losses by hand, layers like the target's, its presets."""

import dataclasses
import math
from pathlib import Path

import jax
import numpy as np
import pytest
from short_models import load_short

import jaxspec
from jaxspec.drafters.specblock.network import SpecBlockConfig, rank_features
from training.data.packing import PackedRows
from training.data.pipeline import DataOptions
from training.drafters import list_presets
from training.drafters.model_options import ModelOptions
from training.drafters.specblock import in_paper_form
from training.drafters.specblock import loss as specblock_loss
from training.drafters.specblock.loss import BlockOptions, block_losses, late_batches
from training.drafters.specblock.model import init_specblock, make_specblock_config
from training.drafters.specblock.slots import SlotLosses
from training.loss.objective import LossOptions
from training.recipe import with_steps
from training.run.loop import LoopOptions
from training.run.optimizer import OptimizerOptions, make_optimizer
from training.train_drafter import DrafterOptions

# Two blocks of two slots at two anchors. The second slot counts where the first one hit.
HIT = np.array([[[[1, 1], [0, 1]]], [[[0, 1], [1, 1]]]], bool)
LOGITS = np.log([0.5, 0.25, 0.125, 0.125]).astype(np.float32)  # so classes cost 1, 2, 3, 3 bits
TOY = SlotLosses(
    values=np.arange(1, 9, dtype=np.float32).reshape(2, 1, 2, 2),
    hit=HIT,
    right=HIT,
    drafted=np.ones_like(HIT),
    wanted=np.array([[[[0, 1], [1, 0]]], [[[1, 3], [0, 2]]]], np.int32),
    ranks=np.broadcast_to(LOGITS, (2, 1, 2, 2, 4)),
)
DRAFT = [[(1 + 3) / 2, 2], [(5 + 7) / 2, 8]]
RANK = np.array([(1 + 2) / 2 + 2, (2 + 1) / 2 + 3]) * math.log(2)
PAPER = BlockOptions(blocks=2, decay=1.0, rank_loss="plain")
BATCH = {
    "tokens": np.zeros((1, 8), np.int32),
    "positions": np.arange(8, dtype=np.int32)[None],
    "segments": np.ones((1, 8), np.int32),
    "loss_mask": np.ones((1, 8), bool),
    "anchors": np.array([[1, 2]], np.int32),
    "keep": np.ones((1, 2), bool),
    "rows": np.zeros(1, np.int32),
    "cuts": np.ones((1, 1), np.int32),
}


def config(**changes):
    sizes = dict(hidden_size=8, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=4, ffn_size=8)
    return SpecBlockConfig(
        **sizes, vocab_size=32, feature_layers=(0,), target_hidden_size=8, slots=2, **changes
    )


def test_equal_slots_and_plain_cross_entropy_by_hand():
    learnt, cuts = np.ones((1, 2, 4), bool), np.ones((1, 1), np.int32)
    draft, rank = block_losses(TOY, learnt, cuts, PAPER)
    np.testing.assert_allclose(draft, DRAFT)
    np.testing.assert_allclose(rank, RANK, rtol=1e-6)
    # Without the mask every slot counts, of the rank head too.
    whole = dataclasses.replace(PAPER, valid_prefix=False)
    draft, rank = block_losses(TOY, learnt, cuts, whole)
    np.testing.assert_allclose(draft, [[2, 3], [6, 7]])
    np.testing.assert_allclose(rank, np.array([3, 4.5]) * math.log(2), rtol=1e-6)
    ordinal = block_losses(TOY, learnt, cuts, dataclasses.replace(PAPER, rank_loss="ordinal"))[1]
    assert (np.abs(ordinal - RANK) > 0.1).all()


def test_the_rank_head_alone_waits(monkeypatch):
    monkeypatch.setattr(
        specblock_loss, "make_specblock_slot_losses", lambda *_, **__: lambda *_: TOY
    )

    def loss(block, step):
        batches = late_batches(lambda step: BATCH, block)
        one = specblock_loss.make_specblock_loss(config(), None, LossOptions(), block)
        return float(one(None, None, batches(step))["loss"][0])

    waits = dataclasses.replace(PAPER, rank_from=3)
    drafts, ranks = np.sum(DRAFT), RANK.sum()
    assert loss(waits, 2) == pytest.approx(drafts)
    assert loss(waits, 3) == pytest.approx(drafts + ranks)
    # As the released code does, the blocks after the first may wait with it, and slots may fall
    # off.
    both = dataclasses.replace(waits, blocks_from=3)
    assert loss(both, 2) == pytest.approx(np.sum(DRAFT[0]))
    assert loss(dataclasses.replace(waits, decay=0.8), 2) == pytest.approx(2 + 1.6 + 6 + 6.4)


def test_the_rank_head_reads_the_whole_distribution_or_its_top():
    logits = np.random.default_rng(0).normal(size=(3, 40)).astype(np.float32) * 2
    for top in (0, 20):
        best = -np.sort(-logits.astype(np.float64))
        seen = best[:, : top or 40]
        logprob = seen - np.log(np.exp(seen).sum(-1, keepdims=True))
        gaps = best[:, :1] - best[:, [1, 2, 4]]
        entropy = -(np.exp(logprob) * logprob).sum(-1, keepdims=True)
        wanted = np.concatenate([logprob[:, :10], gaps, np.exp(logprob[:, :1]), entropy], axis=1)
        np.testing.assert_allclose(rank_features(logits, top), wanted, rtol=1e-4, atol=1e-5)


def test_layers_match_the_targets():
    target = jaxspec.load("mini", drafter={}).spec.target
    target = dataclasses.replace(target, head_dim=128, qk_norm=True)
    layers = dict(num_layers=2, feature_layers=(0, 1))
    options = ModelOptions("specblock", **layers, match_layers=True, rank_top=20)
    matched = make_specblock_config(options, target)
    assert (matched.head_dim, matched.qk_norm, matched.rank_top) == (128, True, 20)
    plain = dataclasses.replace(options, match_layers=False, rank_top=None)
    ours = make_specblock_config(plain, target)
    assert (ours.head_dim, ours.qk_norm, ours.rank_top) == (64, False, 10)
    with pytest.raises(ValueError, match="rank_top is 5: give 10 to 4096, .* or 0 for all"):
        make_specblock_config(dataclasses.replace(options, rank_top=5), target)


@pytest.mark.thorough
def test_such_a_drafter_is_saved_and_changes_no_text(tmp_path):
    params = load_short({})
    layers = dict(num_layers=2, feature_layers=(0, 1), match_layers=True)
    options = ModelOptions("specblock", **layers, rank_top=0, head_dim=32)
    made = make_specblock_config(options, params.spec.target)
    assert made.head_dim * made.num_heads != made.hidden_size
    drafter = init_specblock(made, 0)
    jaxspec.save(params.with_drafter("specblock", made, drafter), tmp_path)
    loaded = jaxspec.load(tmp_path, drafter="specblock", dtype="float32")
    assert loaded.spec.drafter("specblock") == made
    assert jax.tree.all(jax.tree.map(np.array_equal, loaded.drafters["specblock"], drafter))
    given = dict(max_new_tokens=8, budget=12)
    for temperature in (0.0, 1.0):
        texts = [
            jaxspec.decode(loaded, "def f(", temperature=temperature, drafter=name, **given).tokens
            for name in ("ar", "specblock")
        ]
        assert texts[0] == texts[1]


def test_presets_hold_what_the_paper_gives():
    presets = list_presets()
    for name in ("specblock-paper", "specblock-paper-qwen3-8b", "specblock-paper-qwen3-32b"):
        preset = presets[name]
        assert preset.optimizer["betas"] == (0.9, 0.999) and preset.optimizer["warmup"] == 0.015
        assert (preset.batch, preset.epochs, preset.length) == (96, 20, 1024)
        own = preset.method["specblock"]
        assert (own.blocks, own.decay, own.rank_loss) == (2, 1, "plain")
        assert (own.rank_from, own.blocks_from) == (2_000, 0)
        assert preset.model["match_layers"] and preset.model["rank_top"] == 0
    assert presets["specblock-paper-qwen3-32b"].target == "Qwen/Qwen3-32B"
    mini = presets["specblock"]
    assert in_paper_form(mini).optimizer == mini.optimizer
    assert mini.method["specblock"].decay == 0.8  # what works best here stays the default


def test_epochs_and_shares_of_warm_up_become_steps():
    rows = PackedRows(*(np.zeros((10, 4), np.int32) for _ in range(4)))
    loop, data = LoopOptions(Path("run"), steps=9), DataOptions((Path("a.jsonl"),))
    options = DrafterOptions(data, Path("out"), loop, batch=4)
    assert with_steps(options, rows).loop.steps == 9
    longer = dataclasses.replace(options, epochs=2.5)
    assert with_steps(longer, rows).loop.steps == 7  # of 4 rows: 2.5 times 10 rows
    with pytest.raises(ValueError, match="epochs is 0"):
        with_steps(dataclasses.replace(options, epochs=0), rows)
    kernel = {"kernel": np.ones((2, 2), np.float32)}
    optimizer = make_optimizer(kernel, 200, OptimizerOptions("adamw", rate=1.0, warmup=0.015))
    state, sizes = optimizer.init(kernel), []
    for _ in range(5):
        update, state = optimizer.update(kernel, state, kernel)
        sizes.append(-float(update["kernel"][0, 0]))
    np.testing.assert_allclose(sizes[:4], [0, 1 / 3, 2 / 3, 1], rtol=1e-3, atol=1e-6)
