"""The authors' layout: what is read, written and refused."""

import dataclasses
import json
import math
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax.traverse_util import flatten_dict
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.bench.architectures import ARCHITECTURES
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.dflash.shapes import layer_fields
from jaxspec.drafters.files import read_config as read_any_config
from jaxspec.drafters.registry import record_of
from jaxspec.drafters.treeflash.files import FORMAT, read_config, treeflash_leaves
from jaxspec.drafters.treeflash.network import TreeFlashConfig, init_variables
from jaxspec.io.files.safetensors_files import WEIGHTS
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.zoo.convert import convert
from jaxspec.zoo.doctor import diagnose
from jaxspec.zoo.inspect import describe_checkpoint, render_description
from jaxspec.zoo.pack import pack_checkpoint, unpack_checkpoint
from jaxspec.zoo.save import save
from training.drafters.first_weights import read_first_weights
from training.drafters.treeflash import TREEFLASH
from training.drafters.treeflash.model import init_treeflash

GOLDEN = SHIPPED / "treeflash"
TARGET, DRAFT = GOLDEN / "target", GOLDEN / "draft"


def config_json(directory):
    return json.loads((directory / "config.json").read_text())


def edited(destination, nested=(), **entries):
    """A copy of the golden drafter with other entries in config.json; None removes one at the top."""
    shutil.copytree(DRAFT, destination)
    hf = {k: v for k, v in (config_json(destination) | entries).items() if v is not None}
    for name, values in dict(nested).items():
        hf[name] = hf[name] | values
    (destination / "config.json").write_text(json.dumps(hf))
    return destination


def without_correction(destination):
    """The golden backbone alone, with the authors' own config."""
    shutil.copytree(DRAFT, destination)
    shutil.copy(DRAFT / "config_marginal.json", destination / "config.json")
    tensors = load_file(destination / WEIGHTS)
    save_file({k: v for k, v in tensors.items() if k.startswith("model.")}, destination / WEIGHTS)
    return destination


def test_the_golden_config():
    hf = read_entries(DRAFT / "config.json")
    config = read_any_config(hf)
    assert record_of(config).name == "treeflash"
    assert (config.block_size, config.depth, config.mask_token_id) == (8, 7, 196)
    assert config.feature_layers == (0, 2, 3)
    assert config.correction and config.candidate_tokens == 24 and config.conditions == 16
    bare = read_any_config(read_entries(DRAFT / "config_marginal.json"))
    assert bare == dataclasses.replace(config, correction=False)
    # The tree size may be at the top, and layers may follow from the target's number.
    hf["treeflash_config"] = {"ar_approximation": "swiglu"}
    assert read_config(hf).candidate_tokens == 16
    assert read_config(hf | {"candidate_tokens": 9}).candidate_tokens == 9
    hf["dflash_config"] = {"mask_token_id": 196}
    assert read_config(hf).feature_layers == (1, 2)


def test_names_and_shapes_of_a_published_checkpoint():
    """The sizes are the specification's own: the correction of Qwen3-8B's adds 6 H I weights."""
    target = ARCHITECTURES["qwen3-8b"]
    sizes = dict(num_layers=5, block_size=16, feature_layers=(1, 9, 17, 25, 33))
    config = TreeFlashConfig(**layer_fields(target), **sizes)
    leaves = treeflash_leaves(config)
    stored = {name: shape for leaf in leaves for name, _, _, shape in leaf.parts()}
    assert len(stored) == 3 + 11 * 5 + 4
    width, inner = target.hidden_size, target.ffn_size
    assert stored["ar_approximation.ug.weight"] == (2 * inner, 2 * width)
    assert stored["ar_approximation.ug.bias"] == (2 * inner,)
    assert stored["ar_approximation.d.weight"] == (width, inner)
    assert stored["ar_approximation.norm.weight"] == (width,)
    shapes = jax.eval_shape(lambda: init_variables(config))
    found = flatten_dict(shapes["params"])
    assert {path: leaf.shape for path, leaf in found.items()} == {
        leaf.path: leaf.array_shape() for leaf in leaves
    }
    more = sum(math.prod(leaf.shape) for path, leaf in found.items() if path[0] == "correction")
    assert more == 5 * width * inner + width + 2 * inner  # about 250M


@pytest.mark.parametrize("correction", [True, False])
def test_read_write_read_is_tensor_equal(tmp_path, correction):
    source = DRAFT if correction else without_correction(tmp_path / "source")
    model = jaxspec.load(TARGET, drafter={"x": source}, dtype="float32")
    save(model, tmp_path / "model")
    written = tmp_path / "model/drafters/x"
    converted = convert(source, tmp_path / "converted", "treeflash")
    theirs = load_file(source / WEIGHTS)
    for directory in (written, converted):
        found = load_file(directory / WEIGHTS)
        assert set(found) == set(theirs)
        for name, tensor in theirs.items():
            np.testing.assert_array_equal(found[name], tensor)
        hf, own = config_json(directory), config_json(source)
        for name in ("architectures", "block_size", "treeflash_config", "num_target_layers"):
            assert hf[name] == own[name]
        for name, value in own["dflash_config"].items():
            assert hf["dflash_config"][name] == value
    again = jaxspec.load(tmp_path / "model", dtype="float32")
    assert again.spec.drafter("x") == model.spec.drafter("x")
    assert again.spec.drafter("x").candidate_tokens == 24
    jax.tree.map(np.testing.assert_array_equal, again.drafters["x"], model.drafters["x"])


def test_what_our_files_keep(tmp_path):
    model = jaxspec.load(TARGET, drafter={"x": DRAFT}, dtype="float32")
    own = dict(conditions=5, builder="lattice/candidates=4", score_temperature=(0.5, 1.0))
    config = dataclasses.replace(model.spec.drafter("x"), **own)
    save(model.with_drafter("y", config, model.drafters["x"]), tmp_path / "model")
    assert jaxspec.load(tmp_path / "model").spec.drafter("y") == config


def test_a_dflash_checkpoint_is_a_start(tmp_path):
    """Without the prefix and without a correction, which starts at nothing."""
    golden = read_any_config(read_entries(DRAFT / "config.json"))
    names = {field.name for field in dataclasses.fields(BlockDrafterConfig)}
    fields = {name: getattr(golden, name) for name in names} | {"builder": ""}
    dflash = BlockDrafterConfig(**fields)
    model = jaxspec.load(TARGET, drafter={"x": DRAFT}, dtype="float32")
    weights = model.drafters["x"]["params"]["backbone"]
    save(model.with_drafter("dflash", dflash, {"params": weights}), tmp_path / "model")
    folder = tmp_path / "model/drafters/dflash"
    assert "fc.weight" in load_file(folder / WEIGHTS)
    bare = without_correction(tmp_path / "bare")
    for source in (folder, bare):
        found, whole = read_first_weights(source, TREEFLASH, golden, model.spec.target)
        assert not whole and set(found["params"]) == {"backbone"}
        jax.tree.map(np.testing.assert_array_equal, found["params"]["backbone"], weights)
    found, whole = read_first_weights(DRAFT, TREEFLASH, golden, model.spec.target)
    assert whole and set(found["params"]) == {"backbone", "correction"}
    assert not np.any(init_treeflash(golden, 0)["params"]["correction"]["down"]["kernel"])


@pytest.mark.parametrize(
    ("nested", "entries", "message"),
    [
        ({"treeflash_config": {"ar_approximation": "linear"}}, {}, "ar_approximation = 'linear' is not supported"),
        ({"treeflash_config": {"candidate_tokens": 0}}, {}, "candidate_tokens must be an integer from 1"),
        ({}, {"architectures": ["LlamaTreeFlashModel"]}, "architecture 'LlamaTreeFlashModel'"),
        ({"dflash_config": {"causal": True}}, {}, "every slot of TreeFlash sees the whole block"),
        ({}, {"draft_vocab_size": 50}, "no reduced draft vocabulary"),
        ({"dflash_config": {"mask_token_id": -1}}, {}, "mask_token_id must be a token id"),
    ],
)  # fmt: skip
def test_configs_that_are_refused(tmp_path, nested, entries, message):
    directory = edited(tmp_path / "x", nested, **entries)
    with pytest.raises(ValueError, match=message) as caught:
        jaxspec.load(TARGET, drafter=directory)
    assert "\n" not in str(caught.value)


def test_a_correction_that_the_config_denies(tmp_path):
    """The entry alone decides, so weights that it does not announce are refused."""
    directory = edited(tmp_path / "x")
    shutil.copy(DRAFT / "config_marginal.json", directory / "config.json")
    with pytest.raises(WeightMismatch, match=r"4 unexpected: ar_approximation"):
        jaxspec.load(TARGET, drafter=directory)
    other = without_correction(tmp_path / "y")
    shutil.copy(DRAFT / "config.json", other / "config.json")
    with pytest.raises(WeightMismatch, match=r"4 missing: ar_approximation"):
        FORMAT.check(other, read_config(read_entries(other / "config.json")))


def test_inspect_describes_a_drafter(tmp_path):
    about = describe_checkpoint(DRAFT)
    assert about["family"] == "treeflash" and about["readable"]
    assert about["layout"] == "native (TreeFlash)"
    assert about["feature_layers"]["output_of_layer"] == [0, 2, 3]
    assert about["flags"]["treeflash_config.ar_approximation"] == "swiglu"
    assert "treeflash_config.candidate_tokens=24" in render_description(about)
    bare = describe_checkpoint(without_correction(tmp_path / "x"))
    assert bare["family"] == "treeflash" and "without a correction" in bare["layout"]


def test_packed_files_load(tmp_path):
    packed = pack_checkpoint(DRAFT, tmp_path / "packed", TARGET)
    again = jaxspec.load(TARGET, drafter={"x": packed}, dtype="float32").drafters["x"]["params"]
    whole = jaxspec.load(TARGET, drafter={"x": DRAFT}, dtype="float32").drafters["x"]["params"]
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, atol=0.05), again, whole)
    full = unpack_checkpoint(packed, tmp_path / "full", TARGET)
    assert set(load_file(DRAFT / WEIGHTS)) == {
        *jaxspec.io.files.torch_files.open_weights(full).keys()
    }
    with pytest.raises(ValueError, match="a treeflash drafter: write it with --to treeflash"):
        convert(DRAFT, tmp_path / "out", "dflash")


@pytest.mark.slow
def test_doctor_finds_shifted_layers(tmp_path):
    prompts = [run["prompt"] for run in json.loads((GOLDEN / "decode.json").read_text())[:3]]
    good = diagnose(TARGET, DRAFT, prompts=prompts, max_new_tokens=32)
    assert good["warnings"] == [] and good["acceptance"] > 1.5
    shifted = edited(tmp_path / "x", {"dflash_config": {"target_layer_ids": [1, 3, 4]}})
    # Too little is lost for a warning, but the right layers fit better.
    found = diagnose(TARGET, shifted, prompts=prompts, max_new_tokens=32)
    assert found["shifts"]["-1"]["gain"] > 3


@pytest.mark.thorough
def test_a_half_precision_drafter_drafts():
    model = jaxspec.load(TARGET, drafter={"x": DRAFT}, dtype="bfloat16")
    out = jaxspec.decode(model, [3, 5, 9], drafter="x", budget=8, max_new_tokens=8)
    assert (
        len(out.tokens) == 8
        and model.drafters["x"]["params"]["correction"]["norm"]["scale"].dtype == jnp.bfloat16
    )
