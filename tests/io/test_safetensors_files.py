"""Reading and writing weight directories, and what a damaged one is answered with."""

from __future__ import annotations

import json
import shutil

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import save_file

from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import INDEX, WEIGHTS, WeightFiles, write_safetensors

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}


@pytest.fixture
def tensors():
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(size=shape).astype(np.float32)
        for name, shape in {"a": (3, 4), "b": (5,)}.items()
    }


@pytest.fixture
def sharded(tmp_path, tensors):
    """Two shards with an index."""
    homes = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
    for name, file in homes.items():
        write_safetensors(tmp_path / file, {name: tensors[name]})
    (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
    return tmp_path


@pytest.mark.parametrize("dtype", DTYPES)
def test_round_trip_is_exact(tmp_path, tensors, dtype):
    write_safetensors(tmp_path / WEIGHTS, tensors, dtype)
    read = WeightFiles(tmp_path)
    assert set(read) == set(tensors) and len(read) == 2
    for name, tensor in tensors.items():
        assert read.shape(name) == tensor.shape
        assert read[name].dtype == DTYPES[dtype]
        np.testing.assert_array_equal(read[name], tensor.astype(DTYPES[dtype]))
    assert [path.name for path in tmp_path.iterdir()] == [WEIGHTS]


def test_a_transposed_array_is_written_as_it_reads(tmp_path, tensors):
    write_safetensors(tmp_path / WEIGHTS, {"a": tensors["a"].T})
    np.testing.assert_array_equal(WeightFiles(tmp_path)["a"], tensors["a"].T)


def test_shards_are_one_mapping(sharded, tensors):
    read = WeightFiles(sharded)
    for name, tensor in tensors.items():
        np.testing.assert_array_equal(read[name], tensor)


def test_a_missing_shard_is_named(sharded):
    (sharded / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(
        FileNotFoundError,
        match=r"1 of 2 weight files .* missing \(model-00002-of-00002.safetensors\)",
    ):
        WeightFiles(sharded)


def test_shards_of_another_version(sharded, tensors):
    write_safetensors(sharded / "model-00002-of-00002.safetensors", {"c": tensors["b"]})
    with pytest.raises(ValueError, match="lists 1 tensors that its shards do not hold, first 'b'"):
        WeightFiles(sharded)


@pytest.mark.parametrize("kept", [0, 5, 40, -1])
def test_a_truncated_file(tmp_path, tensors, kept):
    path = tmp_path / WEIGHTS
    write_safetensors(path, tensors)
    path.write_bytes(path.read_bytes()[:kept])
    with pytest.raises(
        ValueError, match="model.safetensors is truncated or corrupt .* download it again"
    ) as caught:
        WeightFiles(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_git_lfs_pointer(tmp_path):
    (tmp_path / WEIGHTS).write_text(
        "version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n"
    )
    with pytest.raises(ValueError, match="git lfs pull"):
        WeightFiles(tmp_path)


def test_only_pytorch_weights(tmp_path):
    (tmp_path / "pytorch_model.bin").touch()
    with pytest.raises(
        FileNotFoundError, match=r"only PyTorch weights \(pytorch_model.bin\).*save_pretrained"
    ):
        WeightFiles(tmp_path)


def test_no_weights_and_no_directory(tmp_path):
    with pytest.raises(FileNotFoundError, match="has no weights: expected model.safetensors"):
        WeightFiles(tmp_path)
    shutil.rmtree(tmp_path)
    with pytest.raises(FileNotFoundError, match="is not a directory"):
        WeightFiles(tmp_path)


def test_a_quantised_tensor_is_refused_when_read(tmp_path):
    save_file({"a": np.ones(3, np.int8)}, tmp_path / WEIGHTS)
    with pytest.raises(ValueError, match="a is stored as I8"):
        WeightFiles(tmp_path)["a"]


def test_unknown_dtype_to_write(tmp_path, tensors):
    with pytest.raises(
        ValueError, match="unknown dtype 'int8': choose one of bfloat16, float16, float32"
    ):
        write_safetensors(tmp_path / WEIGHTS, tensors, "int8")


def test_json_files(tmp_path):
    path = tmp_path / "config.json"
    with pytest.raises(FileNotFoundError, match="has no config.json"):
        read_json(path)
    path.write_text('{"a": ')
    with pytest.raises(ValueError, match="not valid JSON"):
        read_json(path)
    path.write_text("[1]")
    with pytest.raises(ValueError, match="holds a list, not a JSON object"):
        read_json(path)


def test_asking_for_a_name_reads_nothing(tmp_path):
    save_file({"a": np.ones(3, np.int8)}, tmp_path / WEIGHTS)
    read = WeightFiles(tmp_path)
    assert "a" in read and "b" not in read and read.dtype("a") == "I8"
