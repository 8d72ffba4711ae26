"""The whole way on a toy: tokenizer, target, export, regeneration, drafter, decoding."""

import dataclasses
import json
from pathlib import Path

import jax
import numpy as np
import pytest
import training_toys as toys

import jaxspec
from jaxspec.core.config import MoEConfig
from jaxspec.zoo.drafters import training_costs
from training import export, regenerate, tokenizer, train_drafter, train_target
from training.acceptance import EvalOptions
from training.data.documents import DataError
from training.data.pipeline import AnchorBatches, DataOptions, load_packed_rows
from training.drafters import list_presets
from training.dry_run import describe_run
from training.loss.feature_cache import with_cached_states
from training.loss.teacher import compute_teacher_states
from training.run.metrics import read_metrics


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder with `model/` (with its drafter), `text.jsonl` and the runs."""
    folder = tmp_path_factory.mktemp("toy")
    data, words, model = (
        toys.write_corpus(folder / "corpus.jsonl.gz"),
        folder / "words",
        folder / "model",
    )
    tokenizer.main(toys.tokenizer_options(data, words))
    train_target.main(toys.target_options(data, words, folder / "target"))
    export.main(export.ExportOptions(folder / "target", words, model))
    regenerate.regenerate(toys.regenerate_options(data, model, folder / "text.jsonl"))
    evaluation = EvalOptions(data, limit=1, max_new_tokens=8)
    out = model / "drafters" / "jetspec"
    train_drafter.train_drafter(
        toys.drafter_options(model, folder / "text.jsonl", folder / "jetspec", out, eval=evaluation)
    )
    return folder


@pytest.mark.thorough
def test_exported_model_loads_and_decodes_losslessly(made):
    params = jaxspec.load(made / "model", dtype="float32")
    assert [name for name, _ in params.spec.drafters] == ["jetspec"]
    texts = [
        jaxspec.decode(params, "Question: 3 + 3?", drafter=m, max_new_tokens=12, budget=8).tokens
        for m in ("ar", "jetspec")
    ]
    np.testing.assert_array_equal(*texts)


@pytest.mark.thorough
def test_a_mixture_of_experts_is_trained_and_exported(made, tmp_path):
    data, words = made / "corpus.jsonl.gz", made / "words"
    options = toys.target_options(data, words, tmp_path / "run", steps=3)
    sizes = {"num_experts": 4, "experts_per_token": 2, "expert_ffn_size": 8}
    with pytest.raises(ValueError, match="and expert_ffn_size"):
        dataclasses.replace(options, num_experts=4).target_config(10)
    train_target.main(dataclasses.replace(options, **sizes))
    export.main(export.ExportOptions(tmp_path / "run", words, tmp_path / "model"))
    params = jaxspec.load(tmp_path / "model", dtype="float32")
    assert params.spec.target.moe == MoEConfig(
        num_experts=4, experts_per_token=2, expert_ffn_size=8
    )
    first = train_target.init_target(params.spec.target, 0)["params"]["layers_1"]["mlp"]
    trained = params.target["params"]["layers_1"]["mlp"]
    assert all(np.abs(trained[name] - first[name]).max() > 1e-4 for name in ("gate_up", "router"))


@pytest.mark.thorough
def test_metrics_are_logged(made):
    target, head = (read_metrics(made / run / "metrics.jsonl") for run in ("target", "jetspec"))
    assert set(target[-1]) == {"step", "seconds", "heldout_math", "heldout_code", "heldout_prose"}
    assert {f"tau_{name}" for name in ("math", "code", "prose", "mean")} < set(head[-1])
    assert {"loss", "accept_length", "accuracy_1", "accuracy_3", "tokens_per_second"} < set(
        head[-2]
    )


@pytest.mark.thorough
def test_the_recipe_lies_beside_the_weights(made):
    out = made / "model" / "drafters" / "jetspec"
    recipe = json.loads((out / "training.json").read_text())
    assert (
        recipe["model"]["block_size"] == 4
        and recipe["steps"] == 2
        and recipe["data"]["files"] == ["text.jsonl"]
    )
    cost = training_costs(made / "model")["jetspec"]
    assert cost["steps"] == 2 and cost["rows"] == 8 and cost["tokens"] > 0 and cost["minutes"] >= 0
    card = (out / "README.md").read_text()
    assert "tau_mean" in card and str(made) not in card
    assert (out / "training.png").stat().st_size > 0


@pytest.mark.thorough
def test_errors_say_what_to_do(made, tmp_path):
    text, model = made / "text.jsonl", made / "model"
    with pytest.raises(DataError, match="python -m jaxspec.training.tokenizer"):
        train_target.main(toys.target_options(made / "corpus.jsonl.gz", tmp_path, tmp_path / "run"))
    options = toys.drafter_options(model, text, tmp_path / "run", tmp_path / "out")
    for change, message in [
        ({"kind": "eagle9"}, "unknown kind 'eagle9': did you mean 'eagle3'"),
        ({"block_size": 1}, "block_size is 1: give 2 to 128"),
        ({"feature_layers": (0, 2)}, r"it reads target layers \[2\], the target has layers 0 to 1"),
    ]:
        with pytest.raises(ValueError, match=message):
            train_drafter.train_drafter(
                dataclasses.replace(options, model=dataclasses.replace(options.model, **change))
            )


@pytest.mark.thorough
def test_another_recipe_is_not_continued(made, tmp_path):
    options = toys.drafter_options(
        made / "model", made / "text.jsonl", made / "jetspec", tmp_path / "out"
    )
    with pytest.raises(ValueError, match="was made with anchors=3, not 2"):
        train_drafter.train_drafter(dataclasses.replace(options, anchors=2))


@pytest.mark.thorough
def test_cached_states_are_the_targets(made, tmp_path, capsys):
    """Up to the rounding of bfloat16, in which they are stored; states of other data are
    refused.
    """
    target = jaxspec.load(made / "model", drafter={}, dtype="float32")
    spec, layers = target.spec.target, (0, 1)
    rows = load_packed_rows(DataOptions((made / "text.jsonl",), length=48), target.spec.tokenizer)
    batches = AnchorBatches(rows, 4, 3, 4, seed=0)
    cached = with_cached_states(batches, tmp_path / "states", rows, spec, target.target, layers)
    assert "GB for" in "".join(capsys.readouterr())
    again = with_cached_states(batches, tmp_path / "states", rows, spec, target.target, layers)
    batch = cached(2)
    live = jax.jit(lambda batch: compute_teacher_states(spec, target.target, layers, batch))(
        batches(2)
    )
    used = (batch["segments"] > 0)[..., None]
    for name in ("features", "hidden"):
        np.testing.assert_array_equal(batch[name], again(2)[name])
        np.testing.assert_allclose(
            batch[name].astype(np.float32) * used, getattr(live, name) * used, rtol=1e-2, atol=1e-2
        )
    logits = np.asarray(live.hidden) @ np.asarray(target.target["params"]["embedding"]).T
    np.testing.assert_array_equal(
        np.where(used[..., 0], batch["best"], 0), np.where(used[..., 0], logits.argmax(-1), 0)
    )
    with pytest.raises(DataError, match="holds the states of other data"):
        with_cached_states(batches, tmp_path / "states", rows, spec, target.target, (0,))


@pytest.mark.thorough
def test_dry_run_counts_and_stops(made, tmp_path):
    options = toys.drafter_options(
        made / "model", made / "text.jsonl", tmp_path / "run", tmp_path / "out"
    )
    shown = describe_run(options)
    drafter = jaxspec.load(made / "model", drafter="jetspec").drafters["jetspec"]
    assert f"{sum(leaf.size for leaf in jax.tree.leaves(drafter)):,} parameters" in shown
    assert (
        "2 of 4 rows: 384 tokens" in shown
        and not (tmp_path / "out").exists()
        and not (tmp_path / "run").exists()
    )


@pytest.mark.parametrize("name", sorted(list_presets()))
def test_presets_fill_the_command_line(name, tmp_path):
    arguments = [
        "--preset",
        name,
        "--data.files",
        "a.jsonl",
        "--out",
        "out",
        "--loop.run",
        "run",
        "--model.num-layers",
        "3",
    ]
    options = train_drafter.parse_options(arguments)
    assert options.model.num_layers == 3 and options.target == list_presets()[name].target
    assert options.data.files == (Path("a.jsonl"),) and options.loop.run == Path("run")


def test_jetspecs_own_recipe_differs_from_the_default():
    """No depth weights, raw probabilities, blocks of 16, trees seven wide, AdamW; else the same."""
    for name in ("jetspec", "smollm2-jetspec"):
        plain, paper = (list_presets()[one] for one in (name, f"{name}-paper"))
        model, loss, optimizer, loop = paper.parts(Path())
        assert (model.score_temperature, model.block_size, model.builder) == (
            (1.0, 1.0),
            16,
            "expand/w7",
        )
        assert loss.gamma is None and loss.kind == "fkl" and optimizer.name == "adamw"
        assert plain.parts(Path())[1].gamma == 4.0
        assert (paper.target, paper.length, loop.steps) == (
            plain.target,
            plain.length,
            plain.loop["steps"],
        )


def test_misspelt_options_fail_with_a_suggestion(capsys):
    arguments = ["--preset", "jetspec", "--data.files", "a.jsonl", "--out", "o", "--loop.run", "r"]
    with pytest.raises(SystemExit):
        train_drafter.parse_options([*arguments, "--loss.gama", "3"])
    assert "--loss.gamma" in capsys.readouterr().err


@pytest.mark.thorough
def test_digits_are_single_tokens_and_turns_have_the_corpus_form(made):
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(made / "model")
    assert (
        words.eos_token == "<|endoftext|>" and words.decode(words.encode("1 + 23\n")) == "1 + 23\n"
    )
    assert len(words.encode("2024")) == 4
    chat = [{"role": "user", "content": "1 + 1?"}]
    text = words.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "Question: 1 + 1?\nAnswer:"
