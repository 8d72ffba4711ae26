"""A family of target models that a test defines and registers loads, decodes and saves."""

import dataclasses
import json
import shutil

import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.targets import TargetFamily

GOLDEN = SHIPPED / "targets" / "llama"


def rename(name: str) -> str:
    """As GPT-2's descendants call their tensors."""
    return name.replace("model.", "transformer.", 1).replace("embed_tokens", "wte")


OAK = TargetFamily(name="oak", architecture="OakForCausalLM", weight_name=rename)


@pytest.fixture
def oak(tmp_path):
    """Llama's weights under other names, in a directory of the new family."""
    jaxspec.targets.register(OAK)
    folder = tmp_path / "oak"
    folder.mkdir()
    hf = json.loads((GOLDEN / "config.json").read_text())
    named = {"architectures": ["OakForCausalLM"], "model_type": "oak"}
    (folder / "config.json").write_text(json.dumps(hf | named))
    tensors = load_file(GOLDEN / "model.safetensors")
    save_file({rename(name): x for name, x in tensors.items()}, folder / "model.safetensors")
    yield folder
    jaxspec.targets.unregister("oak")


def test_it_loads_decodes_and_saves(oak, tmp_path):
    llama, own = (jaxspec.load(folder, dtype="float32", drafter={}) for folder in (GOLDEN, oak))
    options = dict(max_new_tokens=12, budget=6, ignore_eos=True)
    prompt = [5, 9, 2, 5, 9, 2, 5, 9]
    expected = jaxspec.decode(
        llama, prompt, drafter="ar", max_new_tokens=12, sampling=jaxspec.Sampling(ignore_eos=True)
    )
    drafted = jaxspec.decode(own, prompt, drafter="prompt_lookup", **group_options(**options))
    assert drafted.tokens == expected.tokens
    jaxspec.save(own, tmp_path / "again")
    assert json.loads((tmp_path / "again" / "config.json").read_text())["model_type"] == "oak"
    saved = load_file(tmp_path / "again" / "model.safetensors")
    for name, tensor in load_file(oak / "model.safetensors").items():
        np.testing.assert_array_equal(saved[name].astype(np.float32), tensor.astype(np.float32))
    assert jaxspec.load(tmp_path / "again", dtype="float32").spec.target == own.spec.target


@pytest.mark.thorough
def test_its_layers_may_differ(tmp_path):
    """gpt-oss's files under another name: windows, sinks, biases and experts come from the record."""
    shipped = jaxspec.targets.named("gpt_oss")
    elm = dataclasses.replace(shipped, name="elm", architecture="ElmForCausalLM")
    jaxspec.targets.register(elm)
    try:
        source = GOLDEN.parent / "gpt_oss"
        hf = json.loads((source / "config.json").read_text())
        named = {"architectures": ["ElmForCausalLM"], "model_type": "elm"}
        (tmp_path / "config.json").write_text(json.dumps(hf | named))
        shutil.copy(source / "model.safetensors", tmp_path)
        own, theirs = (jaxspec.load(path, dtype="float32") for path in (tmp_path, source))
        layers = own.spec.target.list_layers()
        assert [layer.window for layer in layers] == [5, None, 5] and layers[0].sinks
        prompt = list(range(2, 20))
        greedy = jaxspec.Sampling(ignore_eos=True)
        options = dict(max_new_tokens=12, sampling=greedy)
        expected = jaxspec.decode(theirs, prompt, drafter="ar", **options)
        drafted = jaxspec.decode(own, prompt, drafter="prompt_lookup", budget=8, **options)
        assert drafted.tokens == expected.tokens
    finally:
        jaxspec.targets.unregister("elm")


def test_its_name_belongs_to_it(oak):
    with pytest.raises(ValueError, match="a family is called 'oak' already: choose another name"):
        jaxspec.targets.register(OAK)


def test_it_is_unknown_without_its_record(tmp_path):
    hf = json.loads((GOLDEN / "config.json").read_text())
    named = {"architectures": ["OakForCausalLM"], "model_type": "oak"}
    (tmp_path / "config.json").write_text(json.dumps(hf | named))
    with pytest.raises(
        ValueError, match=r"unknown architecture 'OakForCausalLM' \(model_type 'oak"
    ):
        jaxspec.load(tmp_path)
    with pytest.raises(ValueError, match="unknown family 'oak': choose one of qwen3, llama, "):
        jaxspec.targets.named("oak")
