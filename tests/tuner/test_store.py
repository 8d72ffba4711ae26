"""What a tuner keeps: the first writer wins where that is asked for, and a frozen store only reads."""

import os

import pytest

from jaxspec.io import user_cache
from jaxspec.tuner.store import Store


@pytest.mark.parametrize("links", [True, False])
def test_the_first_to_write_wins(tmp_path, monkeypatch, links):
    if not links:

        def refuse(source, target):
            raise OSError("no links here")

        monkeypatch.setattr(os, "link", refuse)
    store = Store(tmp_path / "made")
    path = store.find("one", 1)
    for text in ("first", "second"):
        store.write_first(path, text)
        assert path.read_text() == "first"
    assert list(path.parent.iterdir()) == [path]
    store.write(path, "third")
    assert path.read_text() == "third"


def test_a_folder_that_cannot_be_written_is_said_once(tmp_path):
    user_cache._warn.cache_clear()
    (tmp_path / "file").write_text("")
    store = Store(tmp_path / "file" / "below")
    with pytest.warns(UserWarning, match="files cannot be kept"):
        store.write_first(store.find("one"), "text")


def test_a_frozen_store_writes_nothing(tmp_path):
    store = Store(tmp_path, frozen=True)
    store.write(store.find("one"), "text")
    store.write_first(store.find("one"), "text")
    assert not list(tmp_path.iterdir())
