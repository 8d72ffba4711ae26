"""PyTorch's checkpoints without PyTorch: golden files that torch.save wrote, hand-made ones,
malicious and damaged ones.
"""

from __future__ import annotations

import builtins
import json
import os
import zipfile

import ml_dtypes
import numpy as np
import pytest
import torch_zip
from golden_data import SHIPPED

from jaxspec.io.files.safetensors_files import WEIGHTS, write_safetensors
from jaxspec.io.files.torch_files import (
    TORCH_INDEX,
    TORCH_WEIGHTS,
    TorchFile,
    TorchFiles,
    open_weights,
)
from jaxspec.io.files.torch_pickle import UnsafePickle

GOLDEN = SHIPPED / "torch"


def test_what_torch_wrote():
    """Views, scalars, empty tensors, parameters and all dtypes, as torch 2.13 saved them."""
    read = TorchFile(GOLDEN / "dtypes.pt")
    base = np.arange(24, dtype=np.float32).reshape(4, 6)
    five = np.linspace(-2, 2, 5, dtype=np.float32)
    expected = {
        "f32": base,
        "transposed": base.T,
        "column": base[:, 2],
        "scalar": np.float32(3.5),
        "empty": np.zeros((0, 3), np.float32),
        "f16": five.astype(np.float16),
        "bf16": five.astype(ml_dtypes.bfloat16),
        "i64": np.array([-(2**40), 7]),
        "t2d": np.array([True, False, True]),
        "parameter": np.full((2, 3), 0.5, np.float32),
    }
    assert list(read) == list(expected)
    for name, tensor in expected.items():
        assert read[name].dtype == tensor.dtype and read.shape(name) == tensor.shape
        assert read[name].flags.c_contiguous and read[name].flags.writeable
        np.testing.assert_array_equal(read[name], tensor)
    assert [read.dtype(name) for name in ("f32", "f16", "bf16", "i64", "t2d")] == [
        "F32",
        "F16",
        "BF16",
        "I64",
        "BOOL",
    ]


def test_hand_made_files_and_shards(tmp_path):
    tensors = torch_zip.sample()
    homes = {name: f"pytorch_model-0000{1 + (name > 'b')}-of-00002.bin" for name in tensors}
    for file in sorted(set(homes.values())):
        torch_zip.write_torch_zip(
            tmp_path / file, {name: tensors[name] for name in tensors if homes[name] == file}
        )
    (tmp_path / TORCH_INDEX).write_text(json.dumps({"weight_map": homes}))
    read = open_weights(tmp_path)
    assert isinstance(read, TorchFiles) and set(read) == set(tensors)
    for name, tensor in tensors.items():
        assert read[name].dtype == tensor.dtype
        np.testing.assert_array_equal(read[name], tensor)
    (tmp_path / TORCH_INDEX).write_text(json.dumps({"weight_map": homes | {"e": homes["a"]}}))
    with pytest.raises(ValueError, match="lists 1 tensors that its shards do not hold, first 'e'"):
        open_weights(tmp_path)
    (tmp_path / homes["a"]).unlink()
    with pytest.raises(FileNotFoundError, match="1 of 2 weight files .* missing"):
        open_weights(tmp_path)


def test_safetensors_win(tmp_path):
    torch_zip.write_torch_zip(tmp_path / TORCH_WEIGHTS, {"a": np.zeros(2, np.float32)})
    write_safetensors(tmp_path / WEIGHTS, {"a": np.ones(2, np.float32)})
    np.testing.assert_array_equal(open_weights(tmp_path)["a"], 1)


@pytest.mark.parametrize(
    ("evil", "named"),
    [
        ((os.system, "true"), "posix.system"),
        ((eval, "1"), "builtins.eval"),
        ((builtins.getattr, 1, "real"), "builtins.getattr"),
        ((np.load, "x"), "numpy"),
    ],
)
def test_a_pickle_that_calls_something_is_refused_and_not_run(tmp_path, monkeypatch, evil, named):
    ran = []
    monkeypatch.setattr(os, "system", lambda *args: ran.append(args))
    pickled = torch_zip.pickled({"a": torch_zip.Evil(*evil)})
    torch_zip.write_zip(tmp_path / TORCH_WEIGHTS, pickled, {})
    # Protocol 2 spells builtins as Python 2 did.
    with pytest.raises(
        UnsafePickle,
        match=rf"is refused: its pickle asks for {named.replace('builtins', '__builtin__')}",
    ):
        TorchFile(tmp_path / TORCH_WEIGHTS)
    assert not ran


def test_a_pickled_module_is_named():
    with pytest.raises(
        UnsafePickle, match="asks for torch.nn.modules.linear.Linear, but only plain tensors"
    ):
        TorchFile(GOLDEN / "module.pt")


@pytest.mark.parametrize(
    ("pickled", "message"),
    [
        (b"\x80\x02K\x01.", "is of type int, not a dictionary of tensors"),
        (
            b"\x80\x02}X\x01\x00\x00\x00aK\x01s.",
            "'a' is of type int, not a tensor: it is a training checkpoint",
        ),
        (b"\x80\x02}", "its pickle is truncated or corrupt"),
        (torch_zip.call("torch FloatStorage") + b")R.", "its pickle is truncated or corrupt"),
        (torch_zip.call("torch._utils _rebuild_tensor") + b"(K\x01K\x02K\x03K\x04tR.", "corrupt"),
        (b"(X\x03\x00\x00\x00fooK\x01tQ.", "corrupt"),
    ],
)
def test_odd_pickles(tmp_path, pickled, message):
    torch_zip.write_zip(tmp_path / "x.pt", pickled, {})
    with pytest.raises(ValueError, match=message) as caught:
        TorchFile(tmp_path / "x.pt")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("strides", "message"),
    [((9, 1), "reaches beyond its storage"), ((0, 0), "repeats its storage")],
)
def test_strides_cannot_leave_the_storage(tmp_path, strides, message):
    tensor = np.ones((3, 2), np.float32)
    pickled = (
        b"\x80\x02}"
        + torch_zip.string("a")
        + torch_zip.tensor_opcodes(tensor, "0", strides)
        + b"s."
    )
    torch_zip.write_zip(
        tmp_path / "x.pt", pickled, {"0": tensor.tobytes()[: 24 if strides[0] else 4]}
    )
    with pytest.raises(ValueError, match=message):
        TorchFile(tmp_path / "x.pt")


def test_other_formats_and_damage(tmp_path):
    with pytest.raises(
        ValueError, match=r"PyTorch's format of before 1\.6, which is not read; convert it once"
    ):
        TorchFile(GOLDEN / "legacy.pt")
    path = tmp_path / TORCH_WEIGHTS
    torch_zip.write_torch_zip(path, {"a": np.ones((64, 64), np.float32)})
    whole = path.read_bytes()
    for kept in (0, 40, len(whole) - 30):
        path.write_bytes(whole[:kept])
        with pytest.raises(ValueError, match="truncated or corrupt"):
            TorchFile(path)
    path.write_text("version https://git-lfs.github.com/spec/v1\noid sha256:00\nsize 1\n")
    with pytest.raises(ValueError, match="git lfs pull"):
        TorchFile(path)
    torch_zip.write_torch_zip(path, {"a": np.ones(64, np.float32)}, zipfile.ZIP_DEFLATED)
    with pytest.raises(ValueError, match="is compressed"):
        TorchFile(path)
    torch_zip.write_zip(path, b"\x80\x02}.", {})
    with zipfile.ZipFile(path, "a") as archive:
        archive.writestr("archive/constants.pkl", b"")
    with pytest.raises(ValueError, match="TorchScript"):
        TorchFile(path)


@pytest.mark.torch
def test_agrees_with_torch(tmp_path):
    import torch

    generator = torch.Generator().manual_seed(0)
    state = {f"{dtype}".removeprefix("torch."): torch.randn(7, 5, generator=generator).mul(9).to(dtype) for dtype in
             (torch.float32, torch.float16, torch.float64, torch.int64, torch.int32, torch.int8, torch.bool)}  # fmt: skip
    state |= {"view": state["float32"][2:5, 1::2], "permuted": state["int64"].t()}
    torch.save(state, tmp_path / "x.pt")
    read = TorchFile(tmp_path / "x.pt")
    for name, tensor in state.items():
        np.testing.assert_array_equal(read[name], tensor.numpy())
