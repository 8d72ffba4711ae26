"""SpecBlock's published layout: config, weights and the map of the draft vocabulary, read and
written.
"""

import dataclasses
import json
import shutil

import jax
import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

from jaxspec.drafters.format import About
from jaxspec.drafters.specblock import files
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.targets.families.hf_config import target_config

GOLDEN = SHIPPED
FOLDER = GOLDEN / "specblock" / "draft"
ABOUT = About(num_layers=8, max_positions=512)


def published():
    return json.loads((FOLDER / "config.json").read_text())


def copy_to(folder, **tensors):
    """The golden drafter with other tensors; None leaves one out."""
    shutil.copy(FOLDER / "config.json", folder)
    changed = load_file(FOLDER / "model.safetensors") | tensors
    save_file(
        {name: x for name, x in changed.items() if x is not None}, folder / "model.safetensors"
    )
    return folder


def test_published_config():
    config = files.config_from_hf(published())
    assert files.matches(published()) and not files.matches({"architectures": ["LlamaForCausalLM"]})
    assert files.matches({"architectures": ["LlamaForCausalLMSpecBlockShift"]})
    assert (config.slots, config.num_layers, config.head_dim, config.draft_vocab_size) == (
        4,
        2,
        16,
        160,
    )
    assert config.feature_layers == () and not config.qk_norm
    target = target_config(json.loads((GOLDEN / "tiny_llama" / "config.json").read_text()))
    assert files.for_target(config, target).feature_layers == (1, 3, 4)
    # The authors' code takes no notice of head_dim.
    assert files.config_from_hf(published() | {"head_dim": 128}).head_dim == 16
    with pytest.raises(ValueError, match="its vocabulary has 257 tokens, the target's 300"):
        files.for_target(config, dataclasses.replace(target, vocab_size=300))
    with pytest.raises(ValueError, match="reads target layers \\[9\\]"):
        files.for_target(dataclasses.replace(config, feature_layers=(1, 9)), target)


def test_what_is_written_is_read_again(tmp_path):
    config = dataclasses.replace(
        files.config_from_hf(published()), feature_layers=(1, 3, 4), blocks=3, rank_top=20
    )
    variables = files.read(FOLDER, config, "float32")
    hf = json.loads(json.dumps(files.config_to_hf(config, ABOUT, "float32")))
    assert files.config_from_hf(hf) == config
    tensors = files.tensors(variables, config)
    expected = load_file(FOLDER / "model.safetensors")
    assert set(tensors) == set(expected)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(tensor, expected[name], err_msg=name)
        assert tensor.dtype == expected[name].dtype
    ablated = dataclasses.replace(
        config, shift=False, prefix_broadcast=False, qk_norm=True, draft_vocab_size=None
    )
    assert files.config_from_hf(files.config_to_hf(ablated, ABOUT, "float32")) == ablated
    # Layers that match a target's, and a rank head that reads the whole distribution.
    matched = dataclasses.replace(config, head_dim=32, qk_norm=True, rank_top=0)
    assert files.config_from_hf(files.config_to_hf(matched, ABOUT, "float32")) == matched


def test_the_whole_vocabulary_needs_no_map(tmp_path):
    config = dataclasses.replace(files.config_from_hf(published()), draft_vocab_size=None)
    head = np.random.default_rng(0).normal(size=(257, 64)).astype(np.float32)
    variables = files.read(
        copy_to(tmp_path, **{"lm_head.weight": head, "d2t": None, "t2d": None}), config, "float32"
    )
    assert "draft" not in variables
    written = files.tensors(variables, config)
    assert written["t2d"].all() and not written["d2t"].any()
    save_file(written, tmp_path / "model.safetensors")
    again = files.read(tmp_path, config, "float32")
    assert jax.tree.all(jax.tree.map(np.array_equal, variables, again))


def test_one_half_of_the_map_is_enough(tmp_path):
    config = files.config_from_hf(published())
    wanted = files.read(FOLDER, config, "float32")
    found = files.read(copy_to(tmp_path, t2d=None), config, "float32")
    assert jax.tree.all(jax.tree.map(np.array_equal, found, wanted))


def test_the_map_may_stand_in_a_file_of_its_own(tmp_path):
    torch = pytest.importorskip("torch")
    config = files.config_from_hf(published())
    stored = load_file(FOLDER / "model.safetensors")
    copy_to(tmp_path, d2t=None, t2d=None)
    with pytest.raises(WeightMismatch, match="d2t, t2d"):
        files.check(tmp_path, config)
    torch.save(
        {name: torch.from_numpy(stored[name]) for name in ("d2t", "t2d")},
        tmp_path / "vocab_mapping.pt",
    )
    files.check(tmp_path, config)
    ids = files.read(tmp_path, config, "float32")["draft"]["ids"]
    np.testing.assert_array_equal(ids, np.arange(160) + stored["d2t"])


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"norm.weight": None}, "1 missing: norm.weight"),
        ({"extra.weight": np.zeros(3, np.float32)}, "1 unexpected: extra.weight"),
        (
            {"shift_proj.0.weight": np.zeros((64, 64), np.float32)},
            r"shift_proj.0.weight \[64, 64\] \(expected \[64, 128\]\)",
        ),
        ({"norm.weight": np.zeros(64, np.int32)}, "norm.weight I32"),
    ],
)
def test_tensors_that_do_not_fit_are_named(tmp_path, change, match):
    config = files.config_from_hf(published())
    for action in (files.check, lambda folder, config: files.read(folder, config, "float32")):
        with pytest.raises(WeightMismatch, match=match):
            action(copy_to(tmp_path, **change), config)


@pytest.mark.parametrize(
    ("change", "match"),
    [
        ({"hidden_size": 66}, "hidden_size 66 is not a multiple"),
        ({"draft_vocab_size": 500}, "draft_vocab_size is 500"),
        ({"jaxspec": {"shift": 1}}, "jaxspec.shift must be true or false"),
        ({"jaxspec": {"feature_layers": [-1]}}, "feature_layers must be target layers"),
    ],
)
def test_configs_that_cannot_be_read_say_why(change, match):
    with pytest.raises(ValueError, match=match):
        files.config_from_hf(published() | change)
