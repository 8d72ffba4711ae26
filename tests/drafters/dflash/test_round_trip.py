"""Read, write, read: every format gives back the same drafter, and refuses a damaged one by the
tensor's name.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import torch_zip
from golden_data import SHIPPED
from safetensors.numpy import load_file, save_file

import jaxspec
from jaxspec.drafters.dflash.files import block_format, read_config
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WEIGHTS, WeightFiles
from jaxspec.io.files.torch_files import TORCH_WEIGHTS
from jaxspec.io.weights.weight_map import WeightMismatch
from jaxspec.zoo.convert import convert

GOLDEN = SHIPPED
TARGET = GOLDEN / "dflash" / "target"
FORMAT = block_format(causal=False)
# Each format, the drafter to write in it, and how it comes about.
FORMATS = ["dflash", "jetspec", "speculators", "torch", "transformers"]


def drafter(directory: Path):
    config = read_config(read_json(directory / "config.json"))
    return config, FORMAT.stored(directory, config)


def source(form: str) -> Path:
    return GOLDEN / ("jetspec" if form == "jetspec" else "dflash") / "drafter"


def write(form: str, destination: Path) -> Path:
    """A golden drafter in one of the formats."""
    if form in ("dflash", "jetspec", "speculators"):
        return convert(source(form), destination, form, TARGET)
    destination.mkdir()
    shutil.copyfile(source(form) / "config.json", destination / "config.json")
    tensors = load_file(source(form) / WEIGHTS)
    if form == "prefixed":
        rotary = {"model.rotary_emb.inv_freq": np.ones(8, np.float32)}
        save_file(
            {f"model.{name}": x for name, x in tensors.items()} | rotary, destination / WEIGHTS
        )
    elif form == "torch":
        torch_zip.write_torch_zip(destination / TORCH_WEIGHTS, tensors)
    else:
        save_file(fused(tensors), destination / WEIGHTS)
    return destination


def fused(tensors: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """The names of transformers' own classes."""
    tensors = dict(tensors)
    for old, new in (
        ("fc.weight", "encoder.fc.weight"),
        ("hidden_norm.weight", "encoder.output_norm_enc.weight"),
    ):
        tensors[new] = tensors.pop(old)
    for i in range(3):
        for folder, parts, whole in (
            ("self_attn", "qkv", "qkv_proj"),
            ("mlp", ("gate_", "up_"), "gate_up_proj"),
        ):
            names = [
                f"layers.{i}.{folder}.{part}{'' if part.endswith('_') else '_'}proj.weight"
                for part in parts
            ]
            tensors[f"layers.{i}.{folder}.{whole}.weight"] = np.concatenate(
                [tensors.pop(name) for name in names]
            )
    return tensors


@pytest.mark.parametrize("form", [*FORMATS, "prefixed"])
def test_read_write_read_is_tensor_equal(tmp_path, form):
    config, tensors = drafter(source(form))
    first = write(form, tmp_path / "first")
    back = [
        first,
        convert(first, tmp_path / "native", "jetspec" if config.causal else "dflash", TARGET),
    ]
    if not config.causal:
        back.append(convert(first, tmp_path / "speculators", "speculators", TARGET))
        back.append(convert(back[-1], tmp_path / "again", "dflash"))  # the file itself says enough
    for directory in back:
        found, stored = drafter(directory)
        assert found == config and set(stored) == set(tensors)
        for name, tensor in tensors.items():
            assert stored[name].dtype == tensor.dtype
            np.testing.assert_array_equal(stored[name], tensor)


def test_dtypes_are_kept_tensor_by_tensor(tmp_path):
    tensors = load_file(source("dflash") / WEIGHTS)
    mixed = {
        name: tensor if "norm" in name else tensor.astype(ml_dtypes.bfloat16)
        for name, tensor in tensors.items()
    }
    shutil.copytree(source("dflash"), tmp_path / "mixed")
    save_file(mixed, tmp_path / "mixed" / WEIGHTS)
    out = convert(tmp_path / "mixed", tmp_path / "out", "speculators", TARGET)
    written = load_file(out / WEIGHTS)
    assert all(written[name].dtype == tensor.dtype for name, tensor in mixed.items())
    assert read_json(out / "config.json")["dtype"] == "bfloat16"


def test_speculators_files_carry_the_targets_embeddings(tmp_path):
    written = load_file(write("speculators", tmp_path / "out") / WEIGHTS)
    target = WeightFiles(TARGET)
    np.testing.assert_array_equal(
        written["embed_tokens.weight"], target["model.embed_tokens.weight"]
    )
    np.testing.assert_array_equal(written["lm_head.weight"], target["lm_head.weight"])
    assert not {"d2t", "t2d", "verifier_lm_head.weight", "verifier_norm.weight"} & set(written)


@pytest.mark.parametrize("form", ["speculators", "torch"])
def test_load_takes_every_format(tmp_path, form):
    params = jaxspec.load(
        TARGET, drafter={"a": str(source(form)), "b": str(write(form, tmp_path / "out"))}
    )
    assert dict(params.spec.drafters)["a"] == dict(params.spec.drafters)["b"]
    np.testing.assert_array_equal(
        *(params.drafters[name]["params"]["fc"]["kernel"] for name in "ab")
    )


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("damage", ["missing", "extra", "transposed", "integer"])
def test_a_damaged_checkpoint_is_refused_by_the_tensors_name(tmp_path, form, damage):
    directory = write(form, tmp_path / "out")
    file = directory / (TORCH_WEIGHTS if form == "torch" else WEIGHTS)
    tensors = (
        load_file(write("dflash", tmp_path / "plain") / WEIGHTS)
        if form == "torch"
        else load_file(file)
    )
    name = "layers.1.mlp.down_proj.weight"
    if damage == "missing":
        del tensors[name]
    elif damage == "extra":
        name = "layers.1.mlp.extra.weight"
        tensors[name] = np.zeros((2, 2), np.float32)
    elif damage == "transposed":
        tensors[name] = np.ascontiguousarray(tensors[name].T)
    else:
        tensors[name] = tensors[name].astype(np.int64)
    (torch_zip.write_torch_zip(file, tensors) if form == "torch" else save_file(tensors, file))
    config = read_config(read_json(directory / "config.json"))
    with pytest.raises(WeightMismatch) as caught:
        FORMAT.read(directory, config, "float32")
    error = caught.value
    named = {
        "missing": error.missing,
        "extra": error.unexpected,
        "transposed": error.misshapen,
        "integer": error.mistyped,
    }
    assert list(named[damage]) == [name] and name in str(error) and "\n" not in str(error)
    with pytest.raises(WeightMismatch):
        FORMAT.stored(directory, config)


@pytest.mark.parametrize(
    ("name", "tensor", "message"),
    [
        (
            "lm_head.weight",
            np.zeros((160, 64), np.float32),
            r"lm_head.weight \[160, 64\] \(expected \[257, 64\]\)",
        ),
        ("embed_tokens.weight", np.zeros((257, 64), np.int64), "embed_tokens.weight I64"),
        ("d2t", np.zeros(160, np.int64), "d2t maps a reduced draft vocabulary"),
        ("verifier_norm.weight", np.ones(64, np.float32), "1 unexpected: verifier_norm.weight"),
    ],
)
def test_what_a_speculators_file_must_not_hold(tmp_path, name, tensor, message):
    directory = write("speculators", tmp_path / "out")
    save_file(load_file(directory / WEIGHTS) | {name: tensor}, directory / WEIGHTS)
    with pytest.raises(ValueError, match=message):
        drafter(directory)


def test_fused_tensors_of_another_size(tmp_path):
    directory = write("transformers", tmp_path / "out")
    tensors = load_file(directory / WEIGHTS)
    name = "layers.0.self_attn.qkv_proj.weight"
    save_file(tensors | {name: tensors[name][:-1]}, directory / WEIGHTS)
    with pytest.raises(WeightMismatch, match=rf"{name} \[127, 64\] \(expected \[128, 64\]\)"):
        drafter(directory)
    save_file(tensors | {"fc.weight": tensors["encoder.fc.weight"]}, directory / WEIGHTS)
    with pytest.raises(WeightMismatch, match="unexpected: (encoder.)?fc.weight"):
        drafter(directory)


def test_a_mask_embedding_of_its_own_is_refused(tmp_path):
    shutil.copytree(source("dflash"), tmp_path / "out")
    (tmp_path / "out" / "mask_embedding.pt").touch()
    with pytest.raises(ValueError, match="mask embedding of its own"):
        drafter(tmp_path / "out")


def test_what_convert_refuses(tmp_path):
    with pytest.raises(ValueError, match="unknown format 'gguf'"):
        convert(source("dflash"), tmp_path / "x", "gguf")
    with pytest.raises(FileExistsError, match="holds a model already"):
        convert(source("dflash"), source("dflash"), "dflash")
    with pytest.raises(ValueError, match="a dflash drafter: write it with --to dflash or specul"):
        convert(source("dflash"), tmp_path / "x", "jetspec")
    with pytest.raises(ValueError, match="a medusa drafter: its files cannot be converted"):
        convert(GOLDEN / "medusa" / "draft", tmp_path / "x", "dflash")
    with pytest.raises(ValueError, match="names the target.*give --target"):
        convert(source("dflash"), tmp_path / "x", "speculators")
    with pytest.raises(ValueError, match="no flag for full-attention layers that are causal"):
        convert(source("jetspec"), tmp_path / "x", "speculators", TARGET)
    with pytest.raises(ValueError, match="does not fit the target"):
        convert(source("dflash"), tmp_path / "x", "dflash", "mini")
    bare = shutil.copytree(write("speculators", tmp_path / "spec"), tmp_path / "bare")
    hf = read_json(bare / "config.json")
    del hf["jaxspec"]
    (bare / "config.json").write_text(json.dumps(hf))
    with pytest.raises(
        ValueError, match="does not say how many layers its target has: give --target"
    ):
        convert(bare, tmp_path / "x", "dflash")
    assert not (tmp_path / "x").exists()
