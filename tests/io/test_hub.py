"""What a model name resolves to: shipped, directory, hub cache."""

from __future__ import annotations

from pathlib import Path

import pytest

from jaxspec.io import hub


@pytest.fixture
def zoo(tmp_path, monkeypatch) -> Path:
    root = tmp_path / "zoo"
    for name in ("mini", "mini/drafters/jetspec", "mini/drafters/dflash"):
        (root / name).mkdir(parents=True)
        (root / name / "config.json").write_text("{}")
    monkeypatch.setattr(hub, "ZOO", root)
    return root


@pytest.fixture
def cache(tmp_path, monkeypatch) -> Path:
    """A local hub cache with one model, as huggingface_hub lays it out, and no way to the
    network.
    """
    from huggingface_hub import constants

    root = tmp_path / "hub"
    repo = root / "models--owner--name"
    snapshot = repo / "snapshots" / ("0" * 40)
    (snapshot / "drafter").mkdir(parents=True)
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("0" * 40)
    (snapshot / "config.json").write_text("{}")
    (snapshot / "drafter" / "config.json").write_text("{}")
    # HF_HUB_CACHE and HF_HUB_OFFLINE are read when huggingface_hub is imported, which other tests
    # may have done already.
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return snapshot


def test_names_that_ship(zoo):
    assert hub.shipped() == ("mini",)
    assert hub.resolve_model("mini") == zoo / "mini"
    assert {"dflash", "jetspec"} <= set(hub.shipped(zoo / "mini" / "drafters"))
    own = zoo / "mini" / "drafters"
    assert hub.resolve_drafter("jetspec", own) == own / "jetspec"


def test_directories(zoo, tmp_path, monkeypatch):
    (tmp_path / "local" / "sub").mkdir(parents=True)
    assert hub.resolve_model(tmp_path / "local") == tmp_path / "local"
    assert hub.resolve_model(f"{tmp_path}/local::sub") == tmp_path / "local" / "sub"
    assert hub.resolve_drafter(tmp_path / "local", zoo / "mini" / "drafters") == tmp_path / "local"
    monkeypatch.chdir(tmp_path)
    assert hub.resolve_model("local").samefile(tmp_path / "local")
    with pytest.raises(FileNotFoundError, match="has no folder 'nowhere'"):
        hub.resolve_model(f"{tmp_path}/local::nowhere")


def test_hub_ids_come_from_the_local_cache(zoo, cache):
    assert hub.resolve_model("owner/name").samefile(cache)
    assert hub.resolve_model("owner/name::drafter").samefile(cache / "drafter")
    assert hub.resolve_drafter("owner/name::drafter", zoo / "mini" / "drafters").samefile(
        cache / "drafter"
    )
    with pytest.raises(FileNotFoundError, match="'owner/name' has no folder 'nowhere'"):
        hub.resolve_model("owner/name::nowhere")


def test_offline_and_not_cached(zoo, cache):
    with pytest.raises(
        FileNotFoundError,
        match="owner/other is not in the local Hugging Face cache and .* cannot be reached",
    ):
        hub.resolve_model("owner/other")


def test_a_mistyped_name_lists_those_that_ship(zoo, cache):
    with pytest.raises(
        FileNotFoundError,
        match=r"'mimi' is also not a model that ships \(mini\), nor a directory here",
    ):
        hub.resolve_model("mimi")
    with pytest.raises(
        FileNotFoundError, match=r"not a drafter that ships with mini \(dflash, jetspec\)"
    ):
        hub.resolve_drafter("jetspeck", zoo / "mini" / "drafters")


@pytest.mark.parametrize("name", ["/no/such/place", "./mini-typo", "a/b/c", ""])
def test_what_cannot_be_a_hub_id(zoo, name):
    with pytest.raises(
        FileNotFoundError, match="is neither a model that ships .*nor a directory, nor a hub id"
    ):
        hub.resolve_model(name)


HELD = [
    "config.json", "model-00001-of-00002.safetensors", "pytorch_model.bin", "original/model.safetensors", "README.md",
    "sub/config.json", "sub/model.safetensors", "sub/old/model.safetensors", "tokenizer.json", "chat_template.jinja",
    "consolidated.safetensors", "sub/consolidated-00001-of-1.safetensors",
]  # fmt: skip


@pytest.mark.parametrize("has_safetensors", [True, False])
def test_only_files_that_are_read_are_asked_for(zoo, tmp_path, monkeypatch, has_safetensors):
    import huggingface_hub

    asked = {}

    def download(repo, **patterns):
        asked[repo] = patterns
        for folder in (tmp_path / "got", tmp_path / "got" / "sub"):
            folder.mkdir(parents=True, exist_ok=True)
            if has_safetensors:
                (folder / "model.safetensors").touch()
        return str(tmp_path / "got")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    hub.resolve_model("owner/plain")
    hub.resolve_model("owner/nested::sub")
    kept = {
        repo: list(huggingface_hub.utils.filter_repo_objects(HELD, **patterns))
        for repo, patterns in asked.items()
    }
    pickled = [] if has_safetensors else ["pytorch_model.bin"]
    assert kept["owner/plain"] == [*HELD[:2], *pickled, "tokenizer.json", "chat_template.jinja"]
    assert kept["owner/nested"] == ["sub/config.json", "sub/model.safetensors"]
