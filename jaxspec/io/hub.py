"""Find a model's files: shipped with jaxspec, in a local directory, or on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

from jaxspec.core.runtime.near_miss import find_near_miss

ZOO = Path(__file__).resolve().parent.parent / "zoo"
_TEXTS = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_FILES = (*_TEXTS, "*.safetensors", "mask_embedding.pt")
# Downloaded only if there are no safetensors: many repositories have the same weights in both.
_PICKLED = ("pytorch_model*.bin",)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def shipped(directory: Path | None = None) -> tuple[str, ...]:
    """List the models in a directory.

    Args:
      directory: directory to look in (default: the models that ship with jaxspec). `MODEL /
        "drafters"` lists a model's drafters.
    """
    return tuple(sorted(path.parent.name for path in (directory or ZOO).glob("*/config.json")))


def resolve_model(
    name: str | os.PathLike, *, weights: bool = True, known: Iterable[str] = ()
) -> Path:
    """Find the directory with the files of a target model; download them if needed.

    Args:
      name: name of a shipped model (`mini`), local directory, or hub id; `ID::SUBFOLDER` names a
        folder inside either of the last two. Hub files come through `huggingface_hub` and its
        cache, which also works offline.
      weights: whether to download weights too. Config and tokenizer are enough to plan with.
      known: other names of models, of which an error names the nearest.

    Raises:
      FileNotFoundError: nothing has this name; the message says what was tried.
    """
    if str(name) in shipped():
        return ZOO / str(name)
    kind = f"a model that ships ({', '.join(shipped()) or 'none here'})"
    return _resolve(str(name), kind, (*shipped(), *known), weights)


def resolve_drafter(name: str | os.PathLike, drafters: Path) -> Path:
    """Find the directory with the files of a drafter; download them if needed.

    Args:
      name: name of a drafter in `drafters`, a directory or a hub id, see `resolve_model`.
      drafters: folder of the drafters that come with the target.

    Raises:
      FileNotFoundError: nothing has this name; the message says what was tried.
    """
    own = shipped(drafters)
    if str(name) in own:
        return drafters / str(name)
    model = drafters.parent.name
    kind = f"a drafter that ships with {model} ({', '.join(own) or 'none'})"
    return _resolve(str(name), kind, own)


def ask_for_near(place: str, known: Iterable[str]) -> str:
    """Ask whether another name was meant: one of `known`, or of what lies beside `place`."""
    path = Path(place).expanduser()
    near = find_near_miss(place, known)
    if near is None and path.name and path.parent.is_dir():
        beside = [
            one.name for one in path.parent.iterdir() if one.is_dir() or one.suffix == ".gguf"
        ]
        found = find_near_miss(path.name, beside)
        near = None if found is None else str(Path(place).with_name(found))
    return "" if near is None else f"; did you mean {near!r}?"


def _resolve(name: str, shipped_kind: str, known: Iterable[str], weights: bool = True) -> Path:
    place, _, subfolder = name.partition("::")
    directory = Path(place).expanduser()
    if not place or not directory.is_dir():
        near = ask_for_near(place, known)
        if not _HUB_ID.fullmatch(place):
            raise FileNotFoundError(
                f"{name!r} is neither {shipped_kind}, nor a directory, nor a hub id (owner/name)"
                f"{near}"
            )
        # Few old models have a hub id without an owner; a mistyped short name is far more likely.
        short = f" ({place!r} is also not {shipped_kind}, nor a directory here)"
        hint = near if "/" in place else short + near
        directory = _download(place, subfolder, weights, hint)
    if not (directory / subfolder).is_dir():
        folders = sorted(one.name for one in directory.iterdir() if one.is_dir())
        found = find_near_miss(subfolder, folders)
        near = "" if found is None else f": did you mean {found!r}?"
        raise FileNotFoundError(f"{place!r} has no folder {subfolder!r}{near}")
    return directory / subfolder


def _download(repo: str, subfolder: str, weights: bool, hint: str) -> Path:
    """Download the files that are read of a hub snapshot, from one folder without subfolders.

    Args:
      hint: ends the error of a repository that cannot be had.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    prefix = f"{subfolder.rstrip('/')}/" if subfolder else ""
    try:
        path = _snapshot(repo, prefix, _FILES if weights else _TEXTS)
        if weights and not any((path / subfolder).glob("*.safetensors")):
            path = _snapshot(repo, prefix, _FILES + _PICKLED)
    except LocalEntryNotFoundError:
        raise FileNotFoundError(
            f"{repo} is not in the local Hugging Face cache and the hub cannot be reached "
            f"(or HF_HUB_OFFLINE is set): go online once, or pass a directory{hint}"
        ) from None
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"cannot download {repo} from the Hugging Face hub: {reason}; "
            f"check the name, or log in with `hf auth login`{hint}"
        ) from None
    return path


def _snapshot(repo: str, prefix: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    allowed = [f"{prefix}{pattern}" for pattern in patterns]
    # Folders, and the same weights as Mistral's own code reads them.
    ignored = [f"{prefix}*/*", f"{prefix}consolidated*"]
    return Path(snapshot_download(repo, allow_patterns=allowed, ignore_patterns=ignored))
