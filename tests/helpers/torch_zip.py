"""Writes PyTorch's zip checkpoints without PyTorch, from the pickle's opcodes up."""

from __future__ import annotations

import io
import pickle
import struct
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np

STORAGES = {
    "float32": "Float",
    "float16": "Half",
    "bfloat16": "BFloat16",
    "int64": "Long",
    "bool": "Bool",
}


def write_torch_zip(
    path: Path, tensors: dict[str, np.ndarray], compression: int = zipfile.ZIP_STORED
) -> None:
    """A file like `torch.save(tensors, path)`."""
    pickled = b"\x80\x02}("
    for key, (name, tensor) in enumerate(tensors.items()):
        pickled += string(name) + tensor_opcodes(tensor, str(key))
    write_zip(
        path,
        pickled + b"u.",
        {str(key): tensor.tobytes() for key, tensor in enumerate(tensors.values())},
        compression,
    )


def write_zip(
    path: Path, pickled: bytes, storages: dict[str, bytes], compression: int = zipfile.ZIP_STORED
) -> None:
    with zipfile.ZipFile(path, "w", compression) as archive:
        archive.writestr("archive/data.pkl", pickled)
        archive.writestr("archive/byteorder", b"little")
        for key, content in storages.items():
            archive.writestr(f"archive/data/{key}", content)


def tensor_opcodes(tensor: np.ndarray, key: str, strides: tuple[int, ...] | None = None) -> bytes:
    """Opcodes that push a tensor: _rebuild_tensor_v2(storage, 0, shape, strides, False,
    OrderedDict()).
    """
    strides = tuple(n // tensor.itemsize for n in tensor.strides) if strides is None else strides
    storage = (
        b"("
        + string("storage")
        + call(f"torch {STORAGES[tensor.dtype.name]}Storage")
        + string(key)
        + string("cpu")
    )
    storage += number(tensor.size) + b"tQ"
    arguments = (
        storage
        + number(0)
        + numbers(tensor.shape)
        + numbers(strides)
        + b"\x89"
        + call("collections OrderedDict")
        + b")R"
    )
    return call("torch._utils _rebuild_tensor_v2") + b"(" + arguments + b"tR"


def call(name: str) -> bytes:
    module, function = name.split()
    return f"c{module}\n{function}\n".encode()


def string(text: str) -> bytes:
    return b"X" + struct.pack("<I", len(text.encode())) + text.encode()


def number(value: int) -> bytes:
    return b"J" + struct.pack("<i", value)


def numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(number, values)) + b"t"


class Evil:
    """What a malicious checkpoint does: call a function of its choice while it is unpickled."""

    def __init__(self, function, *arguments):
        self.called = (function, arguments)

    def __reduce__(self):
        return self.called


def pickled(value) -> bytes:
    stream = io.BytesIO()
    pickle.Pickler(stream, protocol=2).dump(value)
    return stream.getvalue()


def sample() -> dict[str, np.ndarray]:
    generator = np.random.default_rng(0)
    return {
        "a": generator.normal(size=(3, 4)).astype(np.float32),
        "b": generator.normal(size=5).astype(ml_dtypes.bfloat16),
        "c": generator.normal(size=(2, 2)).astype(np.float16),
        "d2t": np.array([-(2**40), 3], np.int64),
        "t2d": np.array([True, False, True]),
    }
