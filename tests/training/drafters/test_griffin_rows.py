"""GRIFFIN's training on packed rows: what rows learn, see and count; noise; options; a short run."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pair_toys as toys
import pytest
import training_toys

import jaxspec
from jaxspec.bench.architectures import abstract_params, architecture, swap_drafter
from jaxspec.core.config import TargetConfig
from jaxspec.drafters.base import Committed, Nodes, TargetHead
from jaxspec.drafters.griffin.drafter import make_griffin_drafter
from jaxspec.drafters.griffin.network import GriffinConfig
from training.drafters import list_presets, named
from training.drafters.griffin.forward import Pairs, attend_passes, run_passes
from training.drafters.griffin.loss import (
    GriffinOptions,
    align_rows,
    draw_noise,
    make_griffin_loss,
    make_rows,
    number_batches,
    score_passes,
)
from training.drafters.griffin.model import init_griffin, make_griffin_config
from training.drafters.model_options import ModelOptions
from training.loss.objective import LossOptions

TARGET = TargetConfig(vocab_size=toys.VOCAB, qk_norm=False, **toys.SIZES | {"num_layers": 3})
CONFIG = GriffinConfig(**toys.SIZES, **toys.OF_TARGET | {"feature_layers": (3,)})
FEATURES = jnp.asarray(toys.FEATURES[..., : toys.WIDTH])
QUIET = GriffinOptions(passes=4, noise=0.0)


@pytest.fixture(scope="module")
def variables():
    return toys.variables_of(init_griffin, CONFIG)


@pytest.fixture(scope="module")
def target():
    return toys.bundle_of("griffin", CONFIG, {}, TARGET).target


def make_batch(segments=None, mask=None):
    """The toy's texts as packed rows; by default each row is one text, all of it to be learnt."""
    segments = np.ones_like(toys.TOKENS) if segments is None else np.asarray(segments, np.int32)
    starts = np.diff(segments, prepend=-1) != 0
    index = np.arange(segments.shape[1])
    first = np.maximum.accumulate(np.where(starts, index, 0), axis=1)
    return {
        "tokens": toys.TOKENS,
        "segments": segments,
        "positions": (index - first).astype(np.int32),
        "loss_mask": np.ones_like(segments, bool) if mask is None else np.asarray(mask, bool),
        "rows": np.arange(len(segments), dtype=np.int32),
    }


def split(length):
    """Segments: a document of `length` tokens, one of the rest but two, and padding."""
    rest = toys.LENGTH - length - 2
    return np.array([[1] * length + [2] * rest + [0] * 2] * 2, np.int32)


def run(variables, batch, features=FEATURES, unmasked=False):
    pairs, learnt = make_rows(batch, toys.EMBEDDING, features, QUIET)
    return run_passes(CONFIG, variables, pairs, QUIET.passes, unmasked), learnt


def test_pass_s_is_the_draft_s_levels_below_the_text(variables):
    """Row t + s of pass s is what decoding drafts from the text up to t, along the text's tokens."""
    drafter = make_griffin_drafter(CONFIG)
    head = TargetHead(toys.TARGET.embed, lambda hidden: hidden @ toys.EMBEDDING.T)
    last, rows = 6, np.arange(7)
    none, count = jnp.zeros(2, jnp.int32), jnp.full(2, last + 1)
    new = Committed(toys.TOKENS[:, rows], toys.TOKENS[:, rows + 1], FEATURES[:, rows], none, count)
    state = drafter.absorb(variables, drafter.init(2, 32, jnp.float32), head, new)
    proposal, scratch = drafter.start(variables, state, head, none, QUIET.passes)
    drafted, one = [proposal.hidden[:, 0, 0]], jnp.ones((2, 1), jnp.int32)
    for level in range(1, QUIET.passes):
        token = jnp.asarray(toys.TOKENS[:, last + 1 + level])[:, None]
        nodes = Nodes(token, (level - 1) * one, level * one, (level - 1) * one, one > 0)
        given = scratch, head, nodes, jnp.int32(level)
        proposal, scratch = drafter.expand(variables, state, *given)
        drafted.append(proposal.hidden[:, 0, 0])
    found, _ = jax.jit(lambda: run(variables, make_batch()))()
    for number, wanted in enumerate(drafted):
        np.testing.assert_allclose(found.predict[number, :, last + number], wanted, atol=2e-5)
    unmasked, _ = jax.jit(lambda: run(variables, make_batch(), unmasked=True))()
    assert np.abs(unmasked.predict[0, :, last] - drafted[0]).max() > 1e-2


def test_documents_of_a_row_do_not_see_each_other(variables):
    """A document beside others, and alone in front of other text."""
    found, _ = jax.jit(lambda: run(variables, make_batch(split(8))))()
    rows = np.roll(toys.TOKENS, -8, axis=1), jnp.roll(FEATURES, -8, axis=1)
    batch = make_batch(split(10)) | {"tokens": rows[0]}
    alone, _ = jax.jit(lambda: run(variables, batch, rows[1]))()
    # The last pair of a document holds the next one's first token, and no row of its own sees it.
    for name in ("predict", "regress", "fed"):
        one, other = getattr(found, name)[:, :, 8:17], getattr(alone, name)[:, :, :9]
        np.testing.assert_allclose(one, other, atol=2e-5)
    np.testing.assert_array_equal(found.fed[1, :, 8], FEATURES[:, 8])
    np.testing.assert_array_equal(found.fed[1, :, 9], found.regress[0, :, 8])


def test_attention_by_hand():
    """One head of width 1 in the second of two passes: what row 2 sees, with a mask and without."""
    q, keys, values = (np.arange(1.0, 5) / 2, np.array([[1, -1, 2, 9.0], [3, 4, -2, 9.0]]), None)
    values = np.array([[1, 10, 100, 7.0], [1000, 2000, 3000, 7.0]])

    def shaped(row):
        return jnp.asarray(row, jnp.float32)[None, :, None, None]

    pairs = Pairs(None, None, jnp.arange(4)[None], jnp.ones((1, 4), jnp.int32))
    given = shaped(q), [shaped(row) for row in keys], [shaped(row) for row in values], pairs
    # Row 2 of pass 1: columns 0 and 1 of pass 0, and its own of pass 1. Column 3 is invisible.
    seen = np.exp(1.5 * np.array([1, -1, -2.0]))
    for unmasked, more in ((False, 0.0), (True, 1.0)):
        wanted = (seen * [1, 10, 3000]).sum() / (seen.sum() + more)
        found = attend_passes(*given, unmasked)
        np.testing.assert_allclose(found[0, 2, 0, 0], wanted, rtol=1e-5)


def test_what_rows_learn():
    """By hand: a document of 8 tokens whose last 4 are to be learnt, then another."""
    mask = np.zeros((2, toys.LENGTH), bool)
    mask[:, 4:8] = True
    batch = make_batch(split(8), mask)
    _, learnt = make_rows(batch, toys.EMBEDDING, FEATURES, QUIET)
    assert np.flatnonzero(learnt.counted[0]).tolist() == [2, 3, 4, 5]  # they predict 4 to 7
    truth = np.asarray(learnt.truth[0])
    np.testing.assert_array_equal(truth[:6], toys.TOKENS[0, 2:8])
    assert (truth[[6, 7, 16, 17, 18, 19]] == -1).all() and (truth[8:16] >= 0).all()
    np.testing.assert_array_equal(learnt.features[0, :7], FEATURES[0, 1:8])
    own = dataclasses.replace(QUIET, counted="feature")
    _, learnt = make_rows(batch, toys.EMBEDDING, FEATURES, own)
    assert np.flatnonzero(learnt.counted[0]).tolist() == [4, 5, 6]  # 7 has no next feature


def test_masks_of_alignment_by_hand():
    close = np.array([[1, 1, 0, 1, 1], [1, 0, 1, 1, 0], [0, 1, 1, 1, 1], [1] * 5], bool)[:, None]
    masks = np.asarray(align_rows(jnp.asarray(close)))[:, 0].astype(int)
    assert masks.tolist() == [
        [1, 1, 1, 1, 1],
        [1, 1, 0, 1, 1],  # A_0, not shifted
        [1, 0, 1, 0, 0],  # M_1 one row later (row 0 after the last) times A_1
        [0, 1, 0, 1, 0],
    ]


def test_losses_by_hand(variables, target):
    """Weights of the terms, means over each pass's own rows, and sums over passes."""
    own = dataclasses.replace(QUIET, regression=0.7, cross_entropy=0.2, top=0.3, top_tokens=2)
    own = dataclasses.replace(own, aligned=9)
    batch = make_batch(split(8))

    @jax.jit
    def score():
        pairs, learnt = make_rows(batch, target["params"]["embedding"], FEATURES, own)
        found = run_passes(CONFIG, variables, pairs, own.passes)
        return found, learnt, score_passes(TARGET, target, found, learnt, 17, own)

    found, learnt, scored = jax.tree.map(np.asarray, score())
    head = np.asarray(target["params"]["lm_head"])
    logits, teacher = found.predict @ head, learnt.features @ head
    log_q, p = (np.asarray(jax.nn.log_softmax(x)) for x in (logits, teacher))
    p, ranks = np.exp(p), np.argsort(-logits, axis=-1)
    close = (ranks[..., : own.aligned] == learnt.truth[None, ..., None]).any(-1)
    best = np.sort(p, axis=-1)[..., -2:-1]
    total = 0.0
    for number in range(own.passes):
        mask = learnt.counted & scored.aligned[number]
        gap = np.abs(found.regress[number] - learnt.features)
        distance = np.where(gap < 1, gap**2 / 2, gap - 0.5).mean(-1)
        ce = -(p * log_q[number])
        terms = distance, ce.sum(-1), np.where(p >= best, ce, 0).sum(-1)
        terms = [(mask * term).sum() / (mask.sum() + 1e-5) for term in terms]
        for name, term in zip(("regression", "cross_entropy", "top"), terms, strict=True):
            np.testing.assert_allclose(getattr(scored, name)[number], term, rtol=2e-5)
        total += 0.7 * terms[0] + 0.2 * terms[1] + 0.3 * terms[2]
    np.testing.assert_array_equal(scored.aligned, align_rows(jnp.asarray(close)))
    assert scored.aligned[1:].any() and not scored.aligned[1:].all()
    loss = make_griffin_loss(CONFIG, TARGET, LossOptions(tile=17), own)
    given = batch | {"features": FEATURES, "hidden": FEATURES}
    sums = jax.jit(loss)(variables, target, given)
    assert set(sums) == {"loss", "regression", "cross_entropy", "top", "accept_length"} | {
        f"accuracy_{k}" for k in (1, 2, 3, 4)
    }
    np.testing.assert_allclose(sums["loss"][0] / sums["loss"][1], total, rtol=2e-5)
    assert sums["loss"][1] == learnt.counted.sum()
    right = (logits.argmax(-1) == learnt.truth) & learnt.counted
    assert sums["accuracy_1"][0] == right[0].sum()
    # Pass 1 is compared one row after the row from which it is drafted, within the document.
    assert sums["accuracy_2"][0] == right[1][:, [*range(1, 8), *range(9, 18)]].sum()


def test_noise_depends_on_row_and_step_alone():
    batches = number_batches(lambda step: make_batch(split(8)), GriffinOptions())
    batch = batches(3)
    assert batch["step"].tolist() == [3, 3]
    noise = np.asarray(draw_noise(batch, FEATURES, 0.2))
    sizes = np.where(np.arange(toys.LENGTH) < 8, 8, 10)[None, :18, None]
    scaled = noise[:, :18] * sizes / (0.2 * 512)
    assert np.abs(scaled).max() < 0.5 and scaled.min() < -0.45 and scaled.max() > 0.45
    swapped = {name: array[::-1] for name, array in batch.items()}
    np.testing.assert_array_equal(draw_noise(swapped, FEATURES, 0.2)[::-1], noise)
    assert np.abs(draw_noise(batches(4), FEATURES, 0.2) - noise).max() > 1
    pairs, learnt = make_rows(batch, toys.EMBEDDING, FEATURES, GriffinOptions())
    np.testing.assert_allclose(pairs.features - FEATURES, noise, atol=1e-4)
    np.testing.assert_array_equal(learnt.features[:, :-1], FEATURES[:, 1:])
    assert "step" not in number_batches(lambda step: make_batch(), QUIET)(0)


@pytest.mark.parametrize(
    ("options", "own", "message"),
    [
        (LossOptions(kind="ce"), {}, "are not GRIFFIN's: leave them at their defaults"),
        (LossOptions(gamma=4.0), {}, "are not GRIFFIN's: leave them at their defaults"),
        (LossOptions(), {"passes": 0}, "passes is 0: give 1 to 16"),
        (LossOptions(), {"aligned": 0}, "aligned is 0: give at least 1 token"),
    ],
)
def test_options_out_of_range(options, own, message):
    with pytest.raises(ValueError, match=message):
        make_griffin_loss(CONFIG, TARGET, options, GriffinOptions(**own))


def test_sizes_of_the_drafter(variables):
    made = make_griffin_config(ModelOptions("griffin", ffn_size=24), TARGET)
    assert (made.feature_layers, made.num_layers, made.depth) == ((3,), 1, 6)
    shapes = jax.eval_shape(lambda: init_griffin(CONFIG, 0, jnp.ones((toys.WIDTH, toys.VOCAB))))
    assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, variables)
    for change in ({"draft_vocab": 9}, {"feature_layers": (1,)}):
        with pytest.raises(ValueError, match=f"{next(iter(change))} is not GRIFFIN's"):
            make_griffin_config(ModelOptions("griffin", **change), TARGET)


def test_the_published_recipe():
    """Stage 1, and the stages after it (arXiv 2502.11018 and its two trainers)."""
    first, later = (list_presets()[f"griffin-llama-3-8b{name}"] for name in ("", "-aligned"))
    own, after = first.method["griffin"], later.method["griffin"]
    assert own == GriffinOptions(1, 1.0, 0.1, 0.0, 10, 3, 0.2, "feature", False)
    assert after == dataclasses.replace(own, passes=2, top=0.5)
    assert first.optimizer == dict(
        name="adamw",
        rate=5e-5,
        warmup=2000,
        decay="linear",
        betas=(0.9, 0.95),
        weight_decay=0.01,
        decayed="all",
        clip=0.5,
        clip_by="value",
    )
    assert later.optimizer == first.optimizer | {"rate": 3e-5}
    assert (first.length, first.batch, first.loop["steps"]) == (2048, 4, 800_000)
    assert first.model == dict(kind="griffin", num_kv_heads=32, ffn_size=11_008)


@pytest.mark.thorough
def test_a_short_run_and_its_next_stage(tmp_path):
    """Train for a toy target, go on with more passes from the drafter of before, decode."""
    from training import export, regenerate, tokenizer, train_drafter, train_target

    data, model = training_toys.write_corpus(tmp_path / "corpus.jsonl.gz"), tmp_path / "model"
    tokenizer.main(training_toys.tokenizer_options(data, tmp_path / "words"))
    options = training_toys.target_options(data, tmp_path / "words", tmp_path / "target")
    train_target.main(options)
    export.main(export.ExportOptions(tmp_path / "target", tmp_path / "words", model))
    text = tmp_path / "text.jsonl"
    regenerate.regenerate(training_toys.regenerate_options(data, model, text))
    for stage, passes in enumerate((1, 3), 1):
        out = tmp_path / f"stage{stage}"
        options = training_toys.drafter_options(
            model,
            text,
            tmp_path / f"run{stage}",
            out,
            method={"griffin": GriffinOptions(passes=passes)},
            init=None if passes == 1 else tmp_path / "stage1",
        )
        options = dataclasses.replace(options, model=ModelOptions("griffin"))
        train_drafter.train_drafter(options)
        params = jaxspec.load(model, drafter=out, dtype="float32")
        texts = [
            jaxspec.decode(params, "Question: 3 + 3?", drafter=one, max_new_tokens=12).tokens
            for one in ("ar", "griffin")
        ]
        np.testing.assert_array_equal(*texts)
    assert named("griffin").option_group == "griffin"


def test_published_sizes_without_weights():
    """What `bench latency` and `aot` time at 8B has the layout of what is trained."""
    spec = swap_drafter(architecture("llama-3.1-8b"), "griffin")
    config = spec.drafter("griffin")
    assert (config.num_kv_heads, config.feature_layers) == (32, (32,))
    found = abstract_params(spec).drafters["griffin"]
    wanted = jax.eval_shape(lambda: init_griffin(config, 0))
    assert jax.tree.map(jnp.shape, found) == jax.tree.map(jnp.shape, wanted)
