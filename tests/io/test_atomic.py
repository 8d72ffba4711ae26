"""Files are written whole or not at all, with the modes that the umask asks for."""

import contextlib
import dataclasses
import errno
import os
import subprocess
import tempfile
import threading
import warnings
from pathlib import Path

import gguf_models
import jax
import numpy as np
import pytest
from safetensors import SafetensorError
from sharded_toys import make_params

import jaxspec
from jaxspec.adapt.checkpoint import VersionFiles
from jaxspec.cli.main import main
from jaxspec.core.runtime import interrupts
from jaxspec.io import program_cache, user_cache
from jaxspec.io.files import atomic, safetensors_files
from jaxspec.policies.rules.static import make_static
from jaxspec.policies.store import load_policy, save_policy
from jaxspec.targets.gguf_files.layout import lay_out_gguf
from jaxspec.zoo.convert import convert
from training.replay.records import Record, save_record
from training.run.checkpoints import CheckpointError, Checkpoints

FULL = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


@pytest.fixture(scope="module")
def toy():
    return make_params("qwen3", ("dflash", "eagle3"))


@pytest.fixture
def small_disk(tmp_path):
    """A folder on a disk of 2 MiB."""
    folder = tmp_path / "small"
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=2m,mode=700", "tmpfs", str(folder)]
    try:
        subprocess.run(mount, check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        pytest.skip("needs the right to mount a file system")
    yield folder
    subprocess.run(["umount", str(folder)], check=True)


def fill(folder: Path) -> None:
    with contextlib.suppress(OSError), open(folder / "filler", "wb", buffering=0) as file:
        while True:
            file.write(bytes(1 << 12))


@pytest.fixture(params=[0o022, 0o027, 0o002])
def umask(request):
    before = os.umask(request.param)
    yield request.param
    os.umask(before)


def list_files(folder: Path) -> list[str]:
    return sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*"))


def write_all(toy, folder: Path) -> None:
    """Write a file of every kind that lies under a temporary name first."""
    jaxspec.save(toy, folder / "model")
    convert(folder / "model/drafters/dflash", folder / "converted", "dflash")
    save_policy(make_static(rows=4), folder / "policy")
    arrays = [np.zeros(1) for _ in dataclasses.fields(Record)[1:]]
    save_record(Record({}, *arrays), folder / "record.npz")
    atomic.write_text(folder / "report.json", "{}")
    checkpoints, versions = Checkpoints(folder / "run", {}), VersionFiles(folder / "versions")
    checkpoints.save(1, {"a": np.zeros(4)})
    versions.save({"a": np.zeros(4)}, {})
    checkpoints.close()
    versions.close()


def test_modes_are_those_of_the_umask(toy, tmp_path, monkeypatch, umask):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    gguf_models.write_gguf("qwen3", tmp_path / "model.gguf")
    lay_out_gguf(tmp_path / "model.gguf")
    write_all(toy, tmp_path)
    wrong = {
        path.relative_to(tmp_path).as_posix(): oct(mode)
        for path in tmp_path.rglob("*")
        if (mode := path.stat().st_mode & 0o777) != (0o777 if path.is_dir() else 0o666) & ~umask
    }
    assert not wrong


def test_a_replaced_file_keeps_its_mode_and_its_links(tmp_path):
    path, link = tmp_path / "file.json", tmp_path / "link.json"
    path.write_text("old")
    path.chmod(0o640)
    link.symlink_to(path)
    atomic.write_text(link, "new")
    assert path.read_text() == "new" and link.is_symlink()
    assert path.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("write", [atomic.replacing, atomic.staging])
def test_what_is_partial_is_removed_if_ctrl_c_ends_the_process(tmp_path, write):
    """See test_interrupts.py for how it ends."""
    with write(tmp_path / "new") as partial:
        assert interrupts._partial == {str(partial)}
    assert not interrupts._partial


def test_pipes_are_written_to(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    read = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_text()))
    reader.start()
    atomic.write_text(tmp_path / "pipe", "text")
    reader.join()
    assert read == ["text"] and list_files(tmp_path) == ["pipe"]


@pytest.mark.parametrize(
    ("error", "number"),
    [
        (FULL, errno.ENOSPC),
        (SafetensorError("I/O error: No space left on device (os error 28)"), errno.ENOSPC),
        (ValueError("RESOURCE_EXHAUSTED: [os error 28: No space left]\nmore"), errno.ENOSPC),
        (Exception("Disk quota exceeded (os error 122)"), errno.EDQUOT),
        (OSError(errno.EIO, "Input/output error"), errno.EIO),
    ],
)
def test_errors_of_libraries_become_one_line(tmp_path, error, number):
    folder = tmp_path / "new" / "model"
    with pytest.raises(OSError) as caught, atomic.staging(folder) as staged:
        (staged / "part").write_text("half")
        raise error
    assert (caught.value.errno, caught.value.filename) == (number, str(folder))
    assert list_files(tmp_path) == []


@pytest.mark.parametrize("error", [ValueError("wrong"), KeyboardInterrupt()])
def test_other_errors_stay_what_they_are(tmp_path, error):
    with pytest.raises(type(error)) as caught, atomic.staging(tmp_path / "model"):
        raise error
    assert caught.value is error and list_files(tmp_path) == []


@pytest.fixture
def full(monkeypatch):
    """Makes the disk full while weights are written, after `files` files of them."""

    def fill(files: int) -> None:
        left = [files]

        def save_file(tensors, path, metadata):
            left[0] -= 1
            Path(path).write_bytes(b"half")
            if left[0] < 0:
                raise SafetensorError("I/O error: No space left on device (os error 28)")

        monkeypatch.setattr(safetensors_files, "save_file", save_file)

    return fill


@pytest.mark.parametrize("files", [0, 1, 2])
def test_a_model_is_saved_whole_or_not_at_all(toy, tmp_path, full, files):
    full(files)
    with pytest.raises(OSError, match="No space left"):
        jaxspec.save(toy, tmp_path / "model")
    assert list_files(tmp_path) == []


def test_a_model_stays_if_there_is_no_room_for_another(toy, tmp_path, full):
    jaxspec.save(toy, tmp_path)
    before = {name: (tmp_path / name).stat().st_mtime_ns for name in list_files(tmp_path)}
    full(1)
    with pytest.raises(OSError, match="No space left"):
        jaxspec.save(toy, tmp_path)
    after = {name: (tmp_path / name).stat().st_mtime_ns for name in list_files(tmp_path)}
    files = [name for name in before if (tmp_path / name).is_file()]
    assert before.keys() == after.keys() and all(before[name] == after[name] for name in files)


def test_a_model_replaces_another(toy, tmp_path):
    jaxspec.save(toy, tmp_path)
    changed = toy.replace(target=jax.tree.map(lambda leaf: leaf + 1, toy.target))
    jaxspec.save(changed, tmp_path)
    found = jax.tree.leaves(jaxspec.load(tmp_path, dtype="float32").target)
    assert all(map(np.array_equal, found, jax.tree.leaves(changed.target)))


def test_a_policy_replaces_another(tmp_path):
    for rows in (4, 2):
        save_policy(make_static(rows=rows), tmp_path / "policy")
    assert load_policy(tmp_path / "policy") == make_static(rows=2)
    assert list_files(tmp_path)[0] == "policy" and (tmp_path / "policy/policy.json").is_file()


# --- A disk that is really full.


# Orbax writes in a thread, whose error it also leaves to the interpreter.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_policy_on_a_full_disk(small_disk):
    fill(small_disk)
    with pytest.raises(OSError, match="No space left"):
        save_policy(make_static(rows=4), small_disk / "policy")
    assert list_files(small_disk) == ["filler"]


def test_convert_on_a_full_disk(small_disk, capsys):
    (small_disk / "filler").write_bytes(bytes(1 << 20))
    words = ["convert", "dflash", str(small_disk / "out"), "--to", "dflash", "--target", "mini"]
    for _ in range(2):
        assert main(words) == 2
        line = f"jaxspec: error: {small_disk / 'out'}: No space left on device: free some, "
        assert capsys.readouterr().err.startswith(line)
        assert list_files(small_disk) == ["filler"]


def test_save_on_a_full_disk(small_disk, tmp_path):
    for folder in (small_disk, small_disk / "model"):
        with pytest.raises(OSError) as caught:
            jaxspec.save(jaxspec.load("mini", drafter={}), folder)
        assert caught.value.errno == errno.ENOSPC and list_files(small_disk) == []


def test_checkpoints_on_a_full_disk(small_disk):
    state = {"a": np.random.default_rng(0).random(300_000, np.float32)}  # zeros are compressed
    checkpoints = Checkpoints(small_disk / "run", {})
    checkpoints.save(1, state)
    with pytest.raises(CheckpointError, match="No space left.*last good checkpoint: .*/1") as error:
        checkpoints.save(2, state)
    assert "\n" not in str(error.value)
    assert [path.name for path in (small_disk / "run").iterdir()] == ["1"]
    checkpoints.close()
    versions = VersionFiles(small_disk / "versions")
    with pytest.raises(OSError, match="No space left"):
        versions.save(state, {})
    versions.close()
    assert list_files(small_disk / "versions") == []


@pytest.fixture
def filled_cache(small_disk, monkeypatch):
    """The user's cache, on a full disk."""
    fill(small_disk)
    monkeypatch.setenv("JAXSPEC_CACHE", str(small_disk))
    user_cache._warn.cache_clear()
    yield small_disk
    user_cache._warn.cache_clear()


def test_a_gguf_file_is_laid_out_elsewhere_if_the_cache_is_full(
    filled_cache, tmp_path, monkeypatch
):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    gguf_models.write_gguf("qwen3", tmp_path / "model.gguf")
    with pytest.warns(UserWarning, match="cannot be kept.*set JAXSPEC_CACHE") as found:
        folder = lay_out_gguf(tmp_path / "model.gguf")
        assert lay_out_gguf(tmp_path / "model.gguf") == folder
    assert len(found) == 1 and folder.is_relative_to(tmp_path / "jaxspec")
    assert (folder / "config.json").is_file()
    assert not list(filled_cache.rglob("*.partial"))


def test_inspect_with_every_cache_full_says_so_in_one_line(
    filled_cache, tmp_path, monkeypatch, capsys
):
    monkeypatch.setattr(tempfile, "tempdir", str(filled_cache / "tmp"))
    gguf_models.write_gguf("qwen3", tmp_path / "model.gguf")
    for _ in range(2):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            assert main(["inspect", str(tmp_path / "model.gguf")]) == 2
        error = capsys.readouterr().err
        assert "No space left" in error and "set JAXSPEC_CACHE" in error
        assert len(error.splitlines()) == 1
        assert not list(filled_cache.rglob("*.partial"))


def test_what_is_kept_is_left_out_once_warned(filled_cache):
    with pytest.warns(UserWarning, match="cannot be kept") as found:
        for name in "abc":
            user_cache.keep(filled_cache / name, "x" * (1 << 14))
    assert len(found) == 1 and list_files(filled_cache) == ["filler"]


def test_programs_are_not_kept_on_a_full_disk(filled_cache, monkeypatch):
    monkeypatch.setattr(jax.config, "update", lambda name, value: None)
    monkeypatch.setattr(type(jax.config), "jax_compilation_cache_dir", None)
    with pytest.warns(UserWarning, match="cannot be kept"):
        assert program_cache.keep_programs.__wrapped__() is None


def test_jax_warns_of_a_program_once():
    """Its warnings name the program, so Python takes each for a new one."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        warnings.filters.insert(0, ("ignore", program_cache._Later(), Warning, None, 0))
        for name in "abc":
            warnings.warn(
                f"Error writing persistent compilation cache entry for {name}: ...", stacklevel=2
            )
            warnings.warn("another", stacklevel=2)
    texts = [str(one.message) for one in found]
    assert texts.count("another") == 3 and len(texts) == 4
