"""The whole way on a toy: tokenizer, target, export, rollouts, drafter, decoding."""

import importlib.util
import json
from pathlib import Path

import jax.numpy as jnp
import numpy as np
import pytest

import jaxspec
from jaxspec.targets.transformer import Transformer
from training import export, rollouts, tokenizer, train_drafter, train_target
from training.data import DataError
from training.rollout_data import AnchorBatches, Rollouts

_SPEC = importlib.util.spec_from_file_location("training_toys", Path(__file__).with_name("toys.py"))
toys = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(toys)


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Folder with `model/` (two drafters in it) and `rollouts/`."""
    folder = tmp_path_factory.mktemp("toy")
    data, words, model = toys.write_corpus(folder / "corpus.jsonl.gz"), folder / "words", folder / "model"
    tokenizer.main(toys.tokenizer_options(data, words))
    train_target.main(toys.target_options(data, words, folder / "target"))
    export.main(export.ExportOptions(folder / "target", words, model))
    rollouts.main(toys.rollout_options(data, model, folder / "rollouts"))
    for kind in ("jetspec", "dflash"):
        out = model / "drafters" / kind
        train_drafter.main(toys.drafter_options(model, folder / "rollouts", folder / kind, out, kind))
    return folder


def test_exported_model_loads_and_decodes_losslessly(made):
    params = jaxspec.load(made / "model", dtype="float32")
    assert [name for name, _ in params.spec.drafters] == ["jetspec", "dflash"]
    methods = ("ar", "jetspec", "dflash")
    texts = [jaxspec.decode(params, "Question: 3 + 3?", method=method, max_new_tokens=12).tokens for method in methods]
    np.testing.assert_array_equal(texts[0], texts[1])
    np.testing.assert_array_equal(texts[0], texts[2])


def test_metrics_are_logged(made):
    last = [json.loads((made / run / "metrics.jsonl").read_text().splitlines()[-1]) for run in ("target", "jetspec")]
    assert set(last[0]) == {"step", "seconds", "heldout_math", "heldout_code", "heldout_prose"}
    assert set(last[1]) == {"step", "seconds", "tau_math", "tau_code", "tau_prose"}


def test_rollouts_are_the_targets_own_text_and_states(made):
    params = export.load_target(made / "model")
    model, found = Transformer(params.spec.target), Rollouts(made / "rollouts").take(np.arange(12))
    tokens = found["tokens"].astype(np.int32)
    positions = np.broadcast_to(np.arange(tokens.shape[1]), tokens.shape)
    out = model.apply(params.target, tokens, positions, feature_layers=(0, 1))
    np.testing.assert_allclose(out.features[:, :-1], found["features"], atol=2e-2, rtol=2e-3)
    np.testing.assert_allclose(out.hidden[:, :-1], found["hidden"], atol=2e-2, rtol=2e-3)
    best = np.asarray(jnp.argmax(model.apply(params.target, out.hidden, method="logits"), -1))
    generated = (positions >= found["prompt"][:, None]) & (positions < found["end"][:, None])
    greedy = generated & (found["temperature"] == 0)[:, None]
    assert greedy.any() and (best[:, :-1] == tokens[:, 1:])[greedy[:, 1:]].all()


def test_anchors_lie_in_the_generated_text(made):
    source = Rollouts(made / "rollouts", skip=1)
    batches = AnchorBatches(source, rows=4, anchors=9, seed=0)
    batch = batches(5)
    np.testing.assert_array_equal(batch["anchors"], batches(5)["anchors"])
    after = np.take_along_axis(batch["loss_mask"], batch["anchors"] + 1, axis=1)
    assert after.all()


def test_finished_shards_are_kept(made):
    before = (made / "rollouts" / "shard-000" / "tokens.npy").stat().st_mtime_ns
    rollouts.main(toys.rollout_options(made / "corpus.jsonl.gz", made / "model", made / "rollouts"))
    assert (made / "rollouts" / "shard-000" / "tokens.npy").stat().st_mtime_ns == before


def test_errors_say_what_to_do(made, tmp_path):
    with pytest.raises(DataError, match="python -m training.rollouts"):
        Rollouts(tmp_path)
    with pytest.raises(DataError, match="a batch of 99"):
        AnchorBatches(Rollouts(made / "rollouts"), rows=99, anchors=1, seed=0)
    with pytest.raises(DataError, match="python -m training.tokenizer"):
        train_target.main(toys.target_options(made / "corpus.jsonl.gz", tmp_path, tmp_path / "run"))


def test_text_ends_after_the_first_generated_eos():
    tokens = np.array([[0, 5, 0, 7, 0, 0], [0, 5, 6, 7, 8, 9]])
    np.testing.assert_array_equal(rollouts.text_end(tokens, np.array([3, 2]), eos=0), [5, 6])


def test_digits_are_single_tokens_and_turns_have_the_corpus_form(made):
    from transformers import AutoTokenizer

    words = AutoTokenizer.from_pretrained(made / "model")
    assert words.eos_token == "<|endoftext|>" and words.decode(words.encode("1 + 23\n")) == "1 + 23\n"
    assert len(words.encode("2024")) == 4
    chat = [{"role": "user", "content": "1 + 1?"}]
    text = words.apply_chat_template(chat, tokenize=False, add_generation_prompt=True)
    assert text == "Question: 1 + 1?\nAnswer:"
