"""Models in parts: put together once, checked by their sum, and found without an import."""

from __future__ import annotations

import hashlib
import sys

import pytest

from jaxspec.zoo.packaged import Packaged

PARTS = (b"abc" * 1000, b"de" * 500)


@pytest.fixture
def parts(tmp_path, monkeypatch):
    monkeypatch.setenv("JAXSPEC_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    for i, content in enumerate(PARTS, 1):
        folder = tmp_path / f"some_model_part{i}" / "data"
        folder.mkdir(parents=True)
        (folder.parent / "__init__.py").write_text("raise ImportError('must not be imported')")
        (folder / f"part{i:02d}.bin").write_bytes(content)
    return tmp_path


def make(sha256: str = "", count: int = 2) -> Packaged:
    modules = tuple(f"some_model_part{i}" for i in range(1, count + 1))
    files = tuple(f"data/part{i:02d}.bin" for i in range(1, count + 1))
    return Packaged(modules, files, "some-model", "owner/some", "whole.gguf", sha256)


def test_parts_make_one_file(parts):
    whole = b"".join(PARTS)
    path = make(hashlib.sha256(whole).hexdigest()).find_file()
    assert path.name == "whole.gguf" and path.read_bytes() == whole
    written = path.stat().st_mtime_ns
    assert make().find_file() == path and path.stat().st_mtime_ns == written


def test_a_wrong_sum_is_refused(parts):
    with pytest.raises(ValueError, match="install the packages again"):
        make("0" * 64).find_file()
    assert not list((parts / "cache").rglob("whole.gguf"))


def test_a_part_that_is_missing_is_no_model(parts):
    assert make(count=3).find_file() is None
