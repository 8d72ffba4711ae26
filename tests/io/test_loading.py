"""Loading in pieces: the same arrays bit for bit, on the host and on the device; bounded memory."""

from __future__ import annotations

import json
import threading

import jax
import ml_dtypes
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.io import progress
from jaxspec.io.files import read_ahead
from jaxspec.io.files.safetensors_files import INDEX, WEIGHTS, WeightFiles, write_safetensors
from jaxspec.io.files.tensors import RenamedTensors, Tensors
from jaxspec.io.weights import load_tree
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import Leaf, WeightMismatch, linear, vector, write_tree

DTYPES = {"float32": np.float32, "float16": np.float16, "bfloat16": ml_dtypes.bfloat16}
# A table like a target's: a lookup table, a fused and a plain projection, biases, a norm, experts.
LEAVES = [
    Leaf(("embedding",), (("embed",),), ((50, 24),)),
    *linear(("qkv",), ["q", "k", "v"], 24, [40, 8, 8], bias=True),
    *linear(("down",), ["down"], 70, [24], bias=False),
    vector(("norm",), "norm", 24),
    Leaf(
        ("gate_up",),
        tuple((f"experts.{e}.gate", f"experts.{e}.up") for e in range(3)),
        ((20, 24), (20, 24)),
        transpose=True,
        stacked=True,
    ),
    Leaf(("bias",), tuple((f"experts.{e}.bias",) for e in range(3)), ((24,),), stacked=True),
]


def draw(dtype: str) -> dict[str, np.ndarray]:
    """Random tensors of the table."""
    generator = np.random.default_rng(0)
    return {
        name: generator.normal(size=shape).astype(DTYPES[dtype])
        for leaf in LEAVES
        for name, _, _, shape in leaf.parts()
    }


def expected(tensors: dict[str, np.ndarray], dtype: str) -> dict[str, np.ndarray]:
    """The tree's arrays by path, assembled whole tensor by whole tensor."""
    found = {}
    for leaf in LEAVES:
        groups = [
            np.concatenate(
                [tensors[name].T if leaf.transpose else tensors[name] for name in names], axis=-1
            )
            for names in leaf.names
        ]
        array = np.stack(groups) if leaf.stacked else groups[0]
        found["/".join(leaf.path)] = array.astype(DTYPES[dtype])
    return found


def flatten(tree: dict) -> dict[str, np.ndarray]:
    paths = jax.tree_util.tree_leaves_with_path(tree["params"])
    return {"/".join(key.key for key in path): np.asarray(leaf) for path, leaf in paths}


@pytest.fixture(params=["host", "device", "threads"])
def way(request, monkeypatch):
    """Assemble on the host or the device, in pieces of at most 256 bytes."""
    monkeypatch.setattr(load_tree, "_HOST_PIECE", 256)
    monkeypatch.setattr(load_tree, "_DEVICE_PIECE", 256)
    if request.param == "device":
        monkeypatch.setattr(load_tree, "_runs_on_cpu", lambda: False)
        monkeypatch.setattr(load_tree, "_DEVICE_ELEMENTS", 0)
    if request.param != "host":
        monkeypatch.setattr(load_tree, "_THREAD_BYTES", 0)
    return request.param


@pytest.fixture
def folder(tmp_path):
    """A function that writes tensors to a folder, in shards."""

    def write(tensors: dict[str, np.ndarray], shards: int):
        names = list(tensors)
        homes = {}
        for number in range(shards):
            file = f"model-{number + 1:05}-of-{shards:05}.safetensors" if shards > 1 else WEIGHTS
            own = names[number::shards]
            write_safetensors(tmp_path / file, {name: tensors[name] for name in own})
            homes |= dict.fromkeys(own, file)
        if shards > 1:
            (tmp_path / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": homes}))
        return WeightFiles(tmp_path)

    return write


@pytest.mark.parametrize("stored", DTYPES)
@pytest.mark.parametrize("dtype", DTYPES)
def test_bits_are_those_of_whole_tensors(way, folder, stored, dtype):
    tensors = draw(stored)
    loaded = read_tree(LEAVES, folder(tensors, shards=2), dtype)
    arrays, wanted = flatten(loaded), expected(tensors, dtype)
    assert set(arrays) == set(wanted)
    for path, array in arrays.items():
        assert array.dtype == DTYPES[dtype]
        assert array.tobytes() == wanted[path].tobytes(), path
    if stored == dtype:
        back = write_tree(LEAVES, loaded)
        assert all(np.array_equal(back[name], tensors[name]) for name in tensors)


def test_dicts_and_views_load_alike(way, folder):
    tensors = draw("float32")
    files = folder(tensors, shards=1)
    views = RenamedTensors(files, {name: name for name in tensors})
    for read in (tensors, views):
        arrays = flatten(read_tree(LEAVES, read, "float32"))
        for path, wanted in expected(tensors, "float32").items():
            np.testing.assert_array_equal(arrays[path], wanted)


@pytest.mark.parametrize(
    ("value", "dtype", "message"),
    [
        (np.nan, "float32", "experts.1.up holds NaN or infinite values: the checkpoint is damaged"),
        (-np.inf, "bfloat16", "experts.1.up holds NaN or infinite values"),
        (1e5, "float16", "experts.1.up does not fit in float16: load it with dtype='float32'"),
    ],
)
def test_the_tensor_that_is_not_finite_is_named(way, folder, value, dtype, message):
    tensors = draw("float32")
    tensors["experts.1.up"][17, 3] = value
    with pytest.raises(ValueError, match=message) as caught:
        read_tree(LEAVES, folder(tensors, shards=1), dtype)
    assert "\n" not in str(caught.value)
    assert not [thread for thread in threading.enumerate() if thread.name == "jaxspec-read"]


def test_integers_of_a_dict_are_refused(way):
    tensors = draw("float32") | {"norm.weight": np.ones(24, np.int32)}
    with pytest.raises(WeightMismatch, match=r"1 of another type: norm.weight int32"):
        read_tree(LEAVES, tensors, "float32")


def test_a_file_that_is_cut_while_it_is_open(way, folder, tmp_path):
    tensors = draw("float32")
    files = folder(tensors, shards=1)
    content = (tmp_path / WEIGHTS).read_bytes()
    (tmp_path / WEIGHTS).write_bytes(content[:-1000])
    with pytest.raises(ValueError, match="is truncated or corrupt .*; download it again"):
        read_tree(LEAVES, files, "float32")


class Counting(Tensors):
    """Counts pieces that have been read and not been taken."""

    def __init__(self, tensors: dict[str, np.ndarray]):
        self._home, self.read, self.most, self.taken = tensors, 0, 0, 0

    def __getitem__(self, name: str) -> np.ndarray:
        raise AssertionError("a whole tensor was read")

    def shape(self, name: str) -> tuple[int, ...]:
        return self._home[name].shape

    def dtype(self, name: str) -> str:
        return "F32"

    def row_reader(self, name: str):
        def read(start, stop, memory):
            self.read += 1
            self.most = max(self.most, self.read - self.taken)
            own = memory[: self._home[name][start:stop].nbytes].view(np.float32)
            own = own.reshape(-1, *self._home[name].shape[1:])
            own[...] = self._home[name][start:stop]
            return own

        return read


def test_few_pieces_are_outstanding(way, monkeypatch):
    read, release = Counting(draw("float32")), read_ahead.ReadAhead.release

    def count(ahead, memory):
        read.taken += 1  # before the thread may use the memory
        memory[:] = 255  # what still used it would hold NaN
        release(ahead, memory)

    monkeypatch.setattr(read_ahead.ReadAhead, "release", count)
    arrays = flatten(read_tree(LEAVES, read, "float32"))
    for path, wanted in expected(read._home, "float32").items():
        np.testing.assert_array_equal(arrays[path], wanted)
    assert read.read == read.taken > 40 and read.most <= read_ahead.BUFFERS
    assert (read.most > 1) == (way != "host")


def test_the_bar_counts_all_bytes(monkeypatch, capsys):
    bars = []

    class Bar:
        def __init__(self, total, **options):
            self.total, self.count, self.options = total, 0, options
            bars.append(self)

        def __enter__(self):
            return self

        def __exit__(self, *exception):
            pass

        def refresh(self):
            pass

        def update(self, count):
            self.count += count

    monkeypatch.setattr("tqdm.tqdm", Bar)
    directory = SHIPPED / "targets" / "qwen3"
    for shown in (None, False):
        jaxspec.load(directory, progress=shown)
    assert not bars  # stderr is no terminal
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    jaxspec.load(directory)
    jaxspec.load(directory, progress=True)
    size = sum(tensor.nbytes for tensor in dict(WeightFiles(directory)).values())
    assert [bar.count for bar in bars] == [bar.total for bar in bars] == [size, size]
    assert [bar.options["delay"] for bar in bars] == [progress.DELAY_SECONDS, 0]


def test_a_bar_leaves_no_line(capsys):
    jaxspec.load(SHIPPED / "targets" / "qwen3", progress=True)
    written = capsys.readouterr().err
    assert "load" in written and written.endswith("\r") and "\n" not in written
