"""Training of drafters with a reduced draft vocabulary: which tokens, what counts in the loss, and
the whole way on a toy.
"""

import dataclasses
import functools
import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.io.files.json_files import read_json
from jaxspec.io.text.prompt_files import LabelledPrompt
from jaxspec.targets.transformer import Transformer
from training import train_drafter
from training.acceptance import EvalOptions
from training.data.draft_vocab import (
    find_frequent_ids,
    find_slots,
    make_draft_vocabulary,
    measure_coverage,
)
from training.data.packing import PackedRows
from training.data.pipeline import DataOptions
from training.drafters.dflash.loss import make_block_loss
from training.drafters.dflash.model import init_block_drafter, make_block_config
from training.drafters.model_options import ModelOptions
from training.dry_run import describe_run
from training.export import export_drafter
from training.loss.objective import LossOptions, make_per_row
from training.run.loop import LoopOptions
from training.run.metrics import read_metrics
from training.run.optimizer import OptimizerOptions

VOCAB, EOS = 40, 38
SIZES = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)
TARGET = TargetConfig(**SIZES, vocab_size=VOCAB, tie_embeddings=True, max_positions=64)


def rows_of(tokens, loss_mask=None):
    tokens = np.atleast_2d(np.asarray(tokens, np.int32))
    mask = (
        np.ones(tokens.shape, bool)
        if loss_mask is None
        else np.atleast_2d(np.asarray(loss_mask, bool))
    )
    return PackedRows(tokens, np.ones_like(tokens), np.zeros_like(tokens), mask)


@pytest.mark.parametrize(
    ("size", "always", "expected"),
    [
        (1, (), [7]),
        (2, (), [3, 7]),  # 3 and 5 occur twice: the lower id
        (3, (), [3, 5, 7]),
        (3, (9,), [3, 7, 9]),  # what ends a text pushes out the rarest
        (3, (8,), [3, 5, 7]),  # unless it occurs nowhere
        (4, (), [3, 5, 7, 9]),
        (6, (), [0, 1, 3, 5, 7, 9]),  # the lowest ids fill up
    ],
)
def test_the_most_frequent_learnt_tokens(size, always, expected):
    rows = rows_of([[9, 7, 7, 7, 5, 3, 5, 3, 2, 2, 2, 2]], [[1] * 8 + [0] * 4])
    ids = find_frequent_ids(rows, size, 12, always)
    assert ids.tolist() == expected and ids.dtype == np.int32
    learnt = rows.tokens[rows.loss_mask]
    assert measure_coverage(rows, ids) == pytest.approx(np.isin(learnt, ids).mean())


def test_places_of_tokens():
    place, there = find_slots(jnp.array([2, 5, 9]), jnp.array([0, 2, 5, 6, 9, 11]))
    assert there.tolist() == [False, True, True, False, True, False]
    assert place[jnp.flatnonzero(there)].tolist() == [0, 1, 2]


@functools.cache
def toy():
    tokens = jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(TARGET).init)(jax.random.key(0), tokens, tokens)
    variables["params"]["embedding"] *= 20  # the usual small weights make every token alike
    return Params(variables, {}, Spec(TARGET, eos=(EOS,)))


@pytest.mark.parametrize("known", [False, True])
@pytest.mark.parametrize("kind", ["fkl", "rkl", "ce"])
def test_rows_against_numpy(kind, known, capsys):
    """Both distributions are renormalised over the draft vocabulary; rows whose main token it lacks
    do not count. The main token may be `known`.
    """
    target, generator = toy(), np.random.default_rng(0)
    draft = make_draft_vocabulary(rows_of(np.r_[0:VOCAB:2]), 20, target)
    assert "20 of 40 tokens, 100.00% of the tokens to predict" in capsys.readouterr().out
    hidden, teacher = generator.normal(size=(2, 30, 16)).astype(np.float32)
    label = generator.integers(0, VOCAB, 30)
    rows = {"label": jnp.asarray(label), "teacher": jnp.asarray(teacher)}
    if known:
        table = np.asarray(target.target["params"]["embedding"])
        rows["best"] = jnp.asarray((teacher @ table.T).argmax(-1))
    per_row = make_per_row(TARGET, LossOptions(kind, temperature=2.0), reduced=True)
    losses, (right, drafted) = per_row(jnp.asarray(hidden), rows, target.target | {"draft": draft})

    ids, table = (
        np.arange(0, VOCAB, 2),
        np.asarray(target.target["params"]["embedding"], np.float64),
    )
    np.testing.assert_array_equal(draft["ids"], ids)
    ours, whole = hidden @ table[ids].T, teacher @ table.T
    np.testing.assert_array_equal(right, ids[ours.argmax(-1)] == label)
    main = label if kind == "ce" else whole.argmax(-1)
    np.testing.assert_array_equal(drafted, main % 2 == 0)
    assert 0 < drafted.sum() < 30

    def log_softmax(x):
        return x - np.log(np.exp(x).sum(-1, keepdims=True))

    log_q, log_p = log_softmax(ours / 2), log_softmax(whole[:, ids] / 2)
    expected = {
        "fkl": (np.exp(log_p) * (log_p - log_q)).sum(-1),
        "rkl": (np.exp(log_q) * (log_q - log_p)).sum(-1),
    }
    expected["ce"] = -log_softmax(ours)[np.arange(30), label // 2]
    np.testing.assert_allclose(losses[drafted], expected[kind][drafted], rtol=2e-5, atol=1e-6)


def test_slots_that_cannot_be_drafted_do_not_count():
    """In the loss; in accuracy they do, as misses."""
    config = make_block_config(
        ModelOptions("dflash", 4, 1, (0,), mask_token=39, draft_vocab=20), TARGET
    )
    target, generator = toy(), np.random.default_rng(0)
    ids = jnp.arange(20) * 2
    draft = {"ids": ids, "lm_head": target.target["params"]["embedding"][ids].T}
    ones, tokens = (
        np.ones((1, 12), np.int32),
        generator.integers(0, VOCAB, (1, 12)).astype(np.int32),
    )
    batch = {
        "tokens": tokens,
        "segments": ones,
        "loss_mask": ones,
        "positions": np.arange(12, dtype=np.int32)[None],
    }
    batch |= {"anchors": np.array([[1, 4, 7]], np.int32), "keep": np.ones((1, 3), bool)}
    batch |= {
        name: generator.normal(size=(1, 12, 16)).astype(np.float32)
        for name in ("features", "hidden")
    }
    loss = jax.jit(make_block_loss(config, TARGET, LossOptions("ce")))
    sums = loss(init_block_drafter(config, 0), target.target | {"draft": draft}, batch)
    labels = np.array([tokens[0, anchor + 1 : anchor + 4] for anchor in (1, 4, 7)])
    assert float(sums["loss"][1]) == (labels % 2 == 0).sum() < 9 and float(sums["loss"][0]) > 0
    assert [float(sums[f"accuracy_{k}"][1]) for k in (1, 2, 3)] == [3, 3, 3] and float(
        sums["accept_length"][1]
    ) == 3


def text(path):
    """Texts of token ids, low ones being frequent, that end with EOS."""
    ids = np.minimum(np.random.default_rng(0).geometric(0.15, (8, 40)) - 1, 36)
    path.write_text(
        "".join(
            json.dumps({"tokens": [*line, EOS], "prompt_length": 4}) + "\n" for line in ids.tolist()
        )
    )
    return path


@pytest.fixture(scope="module")
def options(tmp_path_factory):
    folder = tmp_path_factory.mktemp("draft")
    jaxspec.save(toy(), folder / "model")
    return train_drafter.DrafterOptions(
        data=DataOptions((text(folder / "text.jsonl"),), length=48),
        out=folder / "out",
        loop=LoopOptions(folder / "run", steps=2, save_every=1, eval_every=100, parts=2),
        target=str(folder / "model"),
        model=ModelOptions(
            "dflash", block_size=4, num_layers=1, feature_layers=(0,), mask_token=39, draft_vocab=12
        ),
        loss=LossOptions("fkl", gamma=3.0),
        optimizer=OptimizerOptions(warmup=1),
        batch=4,
        anchors=8,
    )


def check(options):
    """Train, load what was written and compare; returns both bundles."""
    bundle = train_drafter.train_drafter(options)
    kind = options.model.kind
    found = jaxspec.load(options.target, drafter={kind: str(options.out)}, dtype="float32")
    assert (
        found.spec.drafters == bundle.spec.drafters
        and found.spec.drafter(kind).draft_vocab_size == 12
    )
    ids = np.asarray(found.drafters[kind]["draft"]["ids"])
    assert len(ids) == 12 and EOS in ids and ids.max() == EOS
    head = np.asarray(found.target["params"]["embedding"])[ids].T
    np.testing.assert_allclose(found.drafters[kind]["draft"]["lm_head"], head, rtol=1e-2)
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-2, atol=1e-3),
        found.drafters,
        bundle.drafters,
    )
    return bundle


@pytest.mark.parametrize("kind", ["dflash", "jetspec"])
def test_exported_drafters_load_again(tmp_path, kind):
    """In bfloat16, but for the ids."""
    config = make_block_config(
        ModelOptions(kind, 4, 1, (0,), mask_token=39, draft_vocab=12),
        TARGET,
        causal=kind == "jetspec",
    )
    target = toy()
    draft = make_draft_vocabulary(rows_of(np.arange(20, 40)), 12, target)
    shapes = jax.eval_shape(lambda: init_block_drafter(config, 0))
    variables = jax.tree.map(
        lambda leaf: np.linspace(-1, 1, leaf.size, dtype=np.float32).reshape(leaf.shape), shapes
    )
    jaxspec.save(target, tmp_path / "model")
    export_drafter(variables | {"draft": draft}, config, target, tmp_path / "out")
    found = jaxspec.load(tmp_path / "model", drafter={kind: str(tmp_path / "out")}, dtype="float32")
    assert found.spec.drafter(kind) == config
    np.testing.assert_array_equal(found.drafters[kind]["draft"]["ids"], [*range(20, 31), EOS])
    round_off = functools.partial(np.testing.assert_allclose, rtol=1e-2)
    jax.tree.map(round_off, found.drafters[kind], variables | {"draft": draft})


@pytest.mark.slow
def test_a_trained_drafter_is_written_and_loaded(options, capsys):
    check(options)
    shown = capsys.readouterr().out
    assert "draft vocabulary: 12 of 40 tokens" in shown
    hf = read_json(options.out / "config.json")
    assert hf["speculators_model_type"] == "dflash" and hf["draft_vocab_size"] == 12
    recipe = json.loads((options.out / "training.json").read_text())
    assert recipe["model"]["draft_vocab"] == recipe["drafter"]["draft_vocab_size"] == 12
    report = describe_run(options)
    assert "logits of a tile" in report


@pytest.mark.slow
def test_a_causal_head_is_measured_written_natively_and_decodes(options, tmp_path, monkeypatch):
    monkeypatch.setattr(
        "training.acceptance.read_prompts", lambda *_, **__: [LabelledPrompt("ids", [1, 2, 3])]
    )
    evaluation = EvalOptions(tmp_path / "prompts.jsonl", max_new_tokens=16)
    model = dataclasses.replace(options.model, kind="jetspec")
    loop = dataclasses.replace(options.loop, run=tmp_path / "run")
    bundle = check(
        dataclasses.replace(options, model=model, loop=loop, out=tmp_path / "out", eval=evaluation)
    )
    assert read_metrics(tmp_path / "run" / "metrics.jsonl")[-1]["tau_ids"] >= 1
    assert read_json(tmp_path / "out" / "config.json")["architectures"] == ["DFlashDraftModel"]
    prompts = [[1, 2, 3], [5, 4]]
    texts = [
        [
            out.tokens
            for out in jaxspec.decode(bundle, prompts, drafter=m, max_new_tokens=16, budget=8)
        ]
        for m in ("ar", "jetspec")
    ]
    assert texts[0] == texts[1]


@pytest.mark.slow
def test_weights_of_a_whole_vocabulary_may_come_first(options, tmp_path):
    model = dataclasses.replace(options.model, draft_vocab=None)
    loop = dataclasses.replace(options.loop, run=tmp_path / "first")
    whole = train_drafter.train_drafter(
        dataclasses.replace(options, model=model, loop=loop, out=tmp_path / "whole")
    )
    assert "draft" not in whole.drafters["dflash"]
    recipe = json.loads((tmp_path / "whole" / "training.json").read_text())
    assert recipe["model"]["draft_vocab"] is recipe["drafter"]["draft_vocab_size"] is None
    loop = dataclasses.replace(options.loop, run=tmp_path / "second")
    check(dataclasses.replace(options, init=tmp_path / "whole", loop=loop, out=tmp_path / "out"))


def test_sizes_out_of_range_are_refused():
    for size in (0, VOCAB):
        with pytest.raises(
            ValueError,
            match=f"draft_vocab is {size}: give 1 to 39 tokens, or None for the target's 40",
        ):
            make_block_config(ModelOptions(mask_token=39, draft_vocab=size), TARGET)
