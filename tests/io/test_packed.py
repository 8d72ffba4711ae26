"""Drafters in six bits a weight: packing, reading, and writing them in full again."""

from __future__ import annotations

import json

import jax
import ml_dtypes
import numpy as np
import pytest
from golden_data import SHIPPED
from safetensors.numpy import load_file

import jaxspec
from jaxspec.cli.main import main
from jaxspec.io.files.packed import pack, unpack
from jaxspec.io.files.safetensors_files import WEIGHTS, WeightFiles, write_safetensors
from jaxspec.io.hub import ZOO, shipped
from jaxspec.zoo.inspect import describe_checkpoint, render_description
from jaxspec.zoo.pack import is_full, is_packed, pack_checkpoint, unpack_checkpoint

GOLDEN = SHIPPED
DRAFTERS = ZOO / "mini" / "drafters"


def test_a_weight_is_half_a_step_off_at_most():
    rng = np.random.default_rng(0)
    tensors = {
        "matrix": rng.normal(size=(5, 16)).astype(np.float32),
        "half": rng.normal(size=(3, 8)).astype(ml_dtypes.bfloat16),
        "zeros": np.zeros((2, 8), np.float32),
        "vector": np.ones(8, np.float32),
        "ids": np.arange(16).reshape(2, 8),
    }
    stored = pack(tensors)
    for name in ("matrix", "half", "zeros"):
        found, wanted = unpack(stored[name], stored[f"{name}.scale"]), tensors[name]
        rows = 0 if name == "zeros" else len(wanted)
        assert stored[name].shape == (rows, wanted.shape[1]) and stored[name].dtype == np.uint8
        step = np.abs(wanted.astype(np.float32)).max(axis=1, keepdims=True) / 31
        assert (np.abs(found - wanted.astype(np.float32)) <= step / 2 + 1e-7).all()
    for name in ("vector", "ids"):
        assert stored[name] is tensors[name] and f"{name}.scale" not in stored


def test_rows_of_zeros_are_left_out_and_come_back():
    matrix = np.random.default_rng(2).normal(size=(7, 8)).astype(np.float32)
    matrix[[0, 3, 4]] = 0
    stored = pack({"x": matrix})
    assert stored["x"].shape == (4, 8) and stored["x.scale"].shape == (7,)
    found = unpack(stored["x"], stored["x.scale"])
    assert not found[[0, 3, 4]].any()
    np.testing.assert_allclose(found, matrix, atol=np.abs(matrix).max() / 62)
    # A file may hold rows of zeros too.
    whole = np.zeros((7, 8), np.uint8)
    whole[stored["x.scale"] > 0] = stored["x"]
    np.testing.assert_array_equal(unpack(whole, stored["x.scale"]), found)


@pytest.mark.filterwarnings("ignore:invalid value")
def test_weights_that_are_not_finite_stay_so():
    """Loading then names them; a row that was left out would come back as zeros, or not at all."""
    matrix = np.ones((3, 8), np.float32)
    matrix[1, 2] = np.nan
    stored = pack({"x": matrix})
    found = unpack(stored["x"], stored["x.scale"])
    assert np.isnan(found[1]).any() and np.isfinite(found[[0, 2]]).all()


def test_packing_twice_changes_nothing():
    once = pack({"x": np.random.default_rng(1).normal(size=(6, 24)).astype(np.float32)})
    again = pack({"x": unpack(once["x"], once["x.scale"])})
    np.testing.assert_array_equal(once["x"], again["x"])


def test_files_read_packed_tensors_as_floats(tmp_path):
    matrix = np.arange(16, dtype=np.float32).reshape(2, 8)
    write_safetensors(tmp_path / WEIGHTS, pack({"x": matrix, "y": np.ones(3, np.float32)}))
    read = WeightFiles(tmp_path)
    assert set(read) == {"x", "y"} and read.packed == {"x"}
    assert read.shape("x") == (2, 8) and read.dtype("x") == "F32" and read.stored_dtype("x") == "U8"
    assert read["x"].dtype == np.float32
    np.testing.assert_allclose(read["x"], matrix, atol=15 / 62)
    write_safetensors(tmp_path / WEIGHTS, pack({"x": matrix * np.float32([[0], [1]])}))
    assert WeightFiles(tmp_path).shape("x") == (2, 8) == WeightFiles(tmp_path)["x"].shape


def test_wrong_scales_and_shapes_end_in_one_line(tmp_path):
    stored = pack({"x": np.ones((2, 8), np.float32)})
    write_safetensors(tmp_path / WEIGHTS, stored | {"x.scale": np.ones(3, np.float32)})
    with pytest.raises(ValueError, match=r"scales .* are float32 \[3\], 3 of them .* for 2 rows"):
        WeightFiles(tmp_path)["x"]
    write_safetensors(tmp_path / WEIGHTS, stored | {"x": np.ones((2, 7, 1), np.uint8)})
    with pytest.raises(ValueError, match=r"shape \[2, 7, 1\] .* must be \[rows, in\]"):
        WeightFiles(tmp_path).shape("x")


@pytest.mark.parametrize("name", shipped(DRAFTERS))
def test_shipped_drafters_are_packed(name):
    assert is_packed(DRAFTERS / name)
    about = describe_checkpoint(DRAFTERS / name)
    assert about["readable"] and about["weights"]["packed"] > 0
    assert about["weights"]["parameters"] > 1.9e6 and about["weights"]["bytes"] < 2e6
    assert "6 bits a weight" in render_description(about)


def test_a_drafter_survives_unpacking_saving_and_packing(tmp_path, capsys):
    full = unpack_checkpoint("dflash", tmp_path / "full", "mini")
    assert not is_packed(full) and describe_checkpoint(full)["weights"]["dtypes"].keys() == {"BF16"}
    assert main(["convert", str(full), str(tmp_path / "again"), "--to", "packed"]) == 0
    assert "wrote" in capsys.readouterr().out
    params = jaxspec.load("mini", drafter="dflash")
    again = jaxspec.load("mini", drafter={"dflash": tmp_path / "again"})
    for one, other in zip(
        jax.tree.leaves(params.drafters), jax.tree.leaves(again.drafters), strict=True
    ):
        np.testing.assert_allclose(one, other, atol=0.02 * float(np.abs(one).max()))
    jaxspec.save(params, tmp_path / "saved")
    assert not is_packed(tmp_path / "saved/drafters/dflash")
    saved = jaxspec.load(tmp_path / "saved")
    for one, other in zip(
        jax.tree.leaves(params.drafters), jax.tree.leaves(saved.drafters), strict=True
    ):
        np.testing.assert_array_equal(one, other)


def test_targets_stay_exact(tmp_path):
    full = unpack_checkpoint("mini", tmp_path / "full")
    assert is_full(full) and (full / WEIGHTS).stat().st_size > 16e6
    assert (full / "config.json").read_text() == (ZOO / "mini/config.json").read_text()
    plain = load_file(full / WEIGHTS)
    assert main(["convert", str(full), str(tmp_path / "coded"), "--to", "packed"]) == 0
    assert not is_full(tmp_path / "coded")
    for read in (WeightFiles(tmp_path / "coded"), WeightFiles(ZOO / "mini")):
        assert set(read) == set(plain)
        assert all(read[name].tobytes() == plain[name].tobytes() for name in plain)
    folder = tmp_path / "target"
    folder.mkdir()
    source = GOLDEN / "targets/llama_scaled"
    (folder / "config.json").write_text((source / "config.json").read_text())
    write_safetensors(folder / WEIGHTS, pack(dict(WeightFiles(source))))
    with pytest.raises(ValueError, match="the target's weights are packed"):
        jaxspec.load(folder)


def test_mistakes_of_packing(tmp_path):
    with pytest.raises(ValueError, match="is packed already"):
        pack_checkpoint("dflash", tmp_path / "out", "mini")
    with pytest.raises(ValueError, match="is not packed"):
        unpack_checkpoint(GOLDEN / "dflash/drafter", tmp_path / "out")
    with pytest.raises(FileExistsError, match="holds a model already"):
        unpack_checkpoint("dflash", DRAFTERS / "jetspec", "mini")
    config = json.loads((DRAFTERS / "dflash/config.json").read_text())
    assert config["jaxspec"]["storage"] == "packed"
