"""Damaged checkpoints load, or end in one clear line.

Seeded changes of config.json and of the safetensors header, for a target and every drafter that
ships.
"""

from __future__ import annotations

import json
import shutil
import struct
from pathlib import Path

import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.drafters import files
from jaxspec.io.files.safetensors_files import WEIGHTS, WeightFiles
from jaxspec.io.hub import ZOO, shipped
from jaxspec.io.weights.config_entries import COUNT, ENTRIES, FLAG, field, read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.zoo.inspect import describe_checkpoint

GOLDEN = SHIPPED
WRONG = (None, True, -1, 0, 1.5, float("nan"), 10**30, "x", [], [1], ["a", 2], {}, {"a": [1]})
DTYPES = ("F8_E4M3", "Q4", "I64", 7, None, ["F32"])
"""Types that safetensors knows and types that it does not."""


def _folders() -> dict[str, Path]:
    drafters = {name: ZOO / "mini" / "drafters" / name for name in shipped(ZOO / "mini/drafters")}
    targets = ("qwen3", "llama_scaled", "qwen3_moe")
    return drafters | {name: GOLDEN / "targets" / name for name in targets}


FOLDERS = _folders()


def _places(entries: dict) -> list[tuple[str, ...]]:
    """Paths of all entries of a config.json."""
    found = []
    for name, value in entries.items():
        found.append((name,))
        if isinstance(value, dict):
            found += [(name, *path) for path in _places(value)]
    return found


def change_config(path: Path, rng: np.random.Generator) -> str:
    """Give one entry another value, remove it, or cut the file; what was done."""
    hf = json.loads(path.read_text())
    if rng.random() < 0.1:
        cut = int(rng.integers(path.stat().st_size))
        path.write_bytes(path.read_bytes()[:cut])
        return f"cut at {cut}"
    places = [*_places(hf), ("rope_scaling",), ("rms_norm_eps",), ("jaxspec",), ("architectures",)]
    *holders, name = places[rng.integers(len(places))]
    holder = hf
    for key in holders:
        holder = holder[key]
    if rng.random() < 0.2:
        holder.pop(name, None)
        value = "removed"
    else:
        value = holder[name] = WRONG[rng.integers(len(WRONG))]
    path.write_text(json.dumps(hf))
    return f"{'.'.join((*holders, name))} = {value!r}"


def change_header(path: Path, rng: np.random.Generator) -> str:
    """Give one tensor another type, shape or place, or cut the file; what was done."""
    content = path.read_bytes()
    length = struct.unpack("<Q", content[:8])[0]
    header, data = json.loads(content[8 : 8 + length]), content[8 + length :]
    names = [name for name in header if name != "__metadata__"]
    name, kind = names[rng.integers(len(names))], rng.integers(5)
    if kind == 0:
        cut = int(rng.integers(len(content)))
        path.write_bytes(content[:cut])
        return f"cut at {cut}"
    if kind == 1:
        path.write_bytes(struct.pack("<Q", int(rng.integers(2**40))) + content[8:])
        return "another header length"
    key = ("dtype", "shape", "data_offsets")[kind - 2]
    values = DTYPES if key == "dtype" else ([], [3], [0, 2**62], [-1, 4], "x", None)
    value = header[name][key] = values[rng.integers(len(values))]
    packed = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(packed)) + packed + data)
    return f"{name}.{key} = {value!r}"


def copy_of(name: str, to: Path) -> Path:
    shutil.copytree(FOLDERS[name], to, ignore=shutil.ignore_patterns("*.md", "*.npz"))
    return to


def loads_or_says_why(done: str, call) -> None:
    """Hold `call` to an answer, or to one line of ValueError or OSError."""
    try:
        call()
    except (ValueError, OSError) as error:
        text = str(error)
        assert "\n" not in text and len(text) < 600, f"{done}: {text}"
    except Exception as error:  # any other type is the defect that this looks for
        pytest.fail(f"{done}: {type(error).__name__}: {error}")


@pytest.fixture(scope="module")
def mini():
    return ZOO / "mini"


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_config(name, tmp_path, mini):
    rng = np.random.default_rng(sum(name.encode()))
    for turn in range(12):
        folder = copy_of(name, tmp_path / str(turn))
        done = f"{name}: {change_config(folder / 'config.json', rng)}"
        _try_all(name, folder, done, mini)


@pytest.mark.parametrize("name", FOLDERS)
def test_damaged_weights(name, tmp_path, mini):
    rng = np.random.default_rng(sum(name.encode()))
    for turn in range(6):
        folder = copy_of(name, tmp_path / str(turn))
        path = next(folder.glob("*.safetensors"))
        _try_all(name, folder, f"{name}: {change_header(path, rng)}", mini)


def _try_all(name: str, folder: Path, done: str, mini: Path) -> None:
    loads_or_says_why(done, lambda: describe_checkpoint(folder))
    if "drafters" in FOLDERS[name].parts:
        loads_or_says_why(done, lambda: load_drafter(mini, folder))
    else:
        loads_or_says_why(done, lambda: jaxspec.load(folder))


def load_drafter(model: Path, folder: Path) -> None:
    """What `load` does with a drafter."""
    target = target_config(read_entries(model / "config.json"))
    config = files.read_config(read_entries(folder / "config.json"))
    config = files.for_target(config, target)
    files.check_files(folder, config)
    files.load_drafter(folder, config, "float32")


@pytest.mark.parametrize(
    ("entry", "value", "match"),
    [
        ("rope_scaling", [1], r"config.json: rope_scaling must be an object, not \[1\]; correct"),
        ("rms_norm_eps", [1e-6], "rms_norm_eps must be a number above 0, not"),
        ("jaxspec", 3, "jaxspec must be an object, not 3"),
        ("num_hidden_layers", 10**9, "num_hidden_layers must be an integer from 1 to"),
        ("tie_word_embeddings", "false", "tie_word_embeddings must be true or false, not 'false'"),
    ],
)
def test_entries_of_the_wrong_type(tmp_path, entry, value, match):
    folder = copy_of("qwen3", tmp_path / "model")
    hf = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(hf | {entry: value}))
    with pytest.raises(ValueError, match=match) as caught:
        jaxspec.load(folder)
    assert str(folder) in str(caught.value)


def test_an_entry_in_an_object_is_named_in_full(tmp_path):
    (tmp_path / "config.json").write_text('{"jaxspec": {"depth": "8", "note": 1}}')
    with pytest.raises(
        ValueError, match=r"jaxspec\.depth must be an integer from 1 to .*, not '8'"
    ):
        read_entries(tmp_path / "config.json")


def test_null_is_absent(tmp_path):
    (tmp_path / "config.json").write_text('{"rms_norm_eps": null, "jaxspec": {"depth": null}}')
    assert read_entries(tmp_path / "config.json") == {"jaxspec": {}}


def test_fields_of_other_formats():
    assert field({"rows": 3}, "rows", COUNT) == 3
    assert field({"rows": None}, "rows", COUNT, 4) == 4
    with pytest.raises(ValueError, match=r"config.json lacks 'own.rows': add an integer from 1"):
        field({}, "rows", COUNT, where="own.")
    with pytest.raises(ValueError, match="config.json: on must be true or false, not 1;"):
        field({"on": 1}, "on", FLAG)


def test_every_shipped_entry_is_known(mini):
    """An entry that no table knows is one whose type nobody checks."""
    texts = {"dtype", "torch_dtype", "draft_vocabulary"}
    trained = {"steps", "rows", "tokens", "minutes"}
    unused = {"use_aux_hidden_state", "fc_norm"}
    for path in mini.rglob("config.json"):
        names = {place[-1] for place in _places(json.loads(path.read_text()))}
        assert names <= set(ENTRIES) | texts | trained | unused, path


def test_an_unknown_dtype_is_named_in_one_line(tmp_path):
    folder = copy_of("llama_scaled", tmp_path / "model")
    content = (folder / WEIGHTS).read_bytes().replace(b'"F32"', b'"Q42"', 1)
    (folder / WEIGHTS).write_bytes(content)
    with pytest.raises(ValueError, match="Q42") as caught:
        WeightFiles(folder)
    assert "BOOL" not in str(caught.value) and len(str(caught.value)) < 400
