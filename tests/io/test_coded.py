"""Coded tensors: every bit comes back, and damaged files end in one line."""

from __future__ import annotations

import json

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from jaxspec.io.files.coded import ENTRY, decode, encode
from jaxspec.io.files.safetensors_files import WEIGHTS, WeightFiles, write_safetensors

EVERY = np.arange(1 << 16, dtype=np.uint16).view(ml_dtypes.bfloat16)  # NaNs and zeros of both signs


def make_tensors():
    rng = np.random.default_rng(0)
    return {
        "weights": rng.normal(size=(64, 48)).astype(ml_dtypes.bfloat16),
        "steps": rng.normal(32, 8, size=(40, 64)).astype(np.uint8),
        "ids": np.arange(512).reshape(2, 256),
        "kept": np.arange(4096) % 3 == 0,
        "scale": np.ones(300, np.float32),
        "half": np.ones((8, 8), np.float16),
        "noise": rng.integers(0, 256, 64).astype(np.uint8),
    }


def test_every_value_of_bfloat16_comes_back():
    # Repeated, for exponents that all occur equally often get no shorter.
    tensor = np.concatenate([EVERY, np.ones(1 << 17, ml_dtypes.bfloat16)])[None]
    stored, entry = encode({"x": tensor})
    assert json.loads(entry[ENTRY]) == {"x": ["BF16", [1, 3 << 16]]}
    found = decode(stored["x"], "BF16", (1, 3 << 16))
    assert found.dtype == tensor.dtype and found.tobytes() == tensor.tobytes()


def test_files_read_coded_tensors_as_what_they_were(tmp_path):
    tensors = make_tensors()
    write_safetensors(tmp_path / WEIGHTS, tensors, coded=True)
    read = WeightFiles(tmp_path)
    assert read.coded == {"weights", "steps", "ids", "kept", "scale"}  # what gets shorter
    for name in set(tensors) - {"steps", "noise"}:
        assert read[name].dtype == tensors[name].dtype and read.shape(name) == tensors[name].shape
        np.testing.assert_array_equal(read[name], tensors[name])
    assert read.size("weights") < 0.75 * tensors["weights"].nbytes
    assert read.size("half") == tensors["half"].nbytes
    memory = np.empty(48 * 64 * 2, np.uint8)
    rows = read.row_reader("weights")(3, 9, memory)
    np.testing.assert_array_equal(rows, tensors["weights"][3:9])
    block = read.block_reader("weights")(3, 9, slice(4, 8), memory)
    np.testing.assert_array_equal(block, tensors["weights"][3:9, 4:8])


def test_weights_take_two_thirds():
    weights = np.random.default_rng(1).normal(size=(512, 512)).astype(ml_dtypes.bfloat16)
    stored, _ = encode({"x": weights})
    assert 0.6 < len(stored["x"]) / weights.nbytes < 0.7


@pytest.mark.parametrize(
    ("entry", "bytes_", "match"),
    [
        ({"weights": ["BF16", [64, 49]]}, None, "weights: codes cannot be read"),
        ({"weights": ["BF16", [9999, 48]]}, None, "bytes are stored for 479952 values"),
        ({"weights": ["F8", [64, 48]]}, None, "says that weights is F8"),
        ({"weights": ["BF16", [-1, 48]]}, None, r"says that weights is BF16 \[-1, 48\]"),
        ([1], None, "is no table of dtypes and shapes"),
        ({"weights": 3}, None, "is no table of dtypes and shapes"),
        (None, np.full(5000, 255, np.uint8), "codes cannot be read"),
    ],
)
def test_damaged_codes_end_in_one_line(tmp_path, entry, bytes_, match):
    stored, known = encode({"weights": make_tensors()["weights"]})
    if bytes_ is not None:
        stored = {"weights": bytes_}
    text = known[ENTRY] if entry is None else json.dumps(entry)
    save_file(stored, tmp_path / WEIGHTS, metadata={"format": "pt", ENTRY: text})
    with pytest.raises(ValueError, match=f"model.safetensors is truncated or .*({match})") as error:
        WeightFiles(tmp_path)["weights"]
    assert "\n" not in str(error.value)


def test_codes_of_another_length_are_refused():
    stored, _ = encode({"x": np.ones(300, np.uint8)})
    for size in (299, 301):
        with pytest.raises(ValueError, match=f"codes hold .* bytes, and {size} are due"):
            decode(stored["x"], "U8", (size,))


def test_other_readers_see_bytes(tmp_path):
    write_safetensors(tmp_path / WEIGHTS, make_tensors(), coded=True)
    assert load_file(tmp_path / WEIGHTS)["weights"].dtype == np.uint8
