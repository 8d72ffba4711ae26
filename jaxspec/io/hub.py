"""Find a model's files: shipped with jaxspec, in a local directory, or on the Hugging Face hub."""

from __future__ import annotations

import os
import re
from pathlib import Path

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


def resolve_model(name: str | os.PathLike, *, weights: bool = True) -> Path:
    """Find the directory with the files of a target model; download them if needed.

    Args:
      name: name of a shipped model (`mini`), local directory, or hub id; `ID::SUBFOLDER` names a
        folder inside either of the last two. Hub files come through `huggingface_hub` and its
        cache, which also works offline.
      weights: whether to download weights too. Config and tokenizer are enough to plan with.

    Raises:
      FileNotFoundError: nothing has this name; the message says what was tried.
    """
    if str(name) in shipped():
        return ZOO / str(name)
    return _resolve(
        str(name), f"a model that ships ({', '.join(shipped()) or 'none here'})", weights
    )


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
    return _resolve(str(name), f"a drafter that ships with {model} ({', '.join(own) or 'none'})")


def _resolve(name: str, shipped_kind: str, weights: bool = True) -> Path:
    place, _, subfolder = name.partition("::")
    directory = Path(place).expanduser()
    if not place or not directory.is_dir():
        if not _HUB_ID.fullmatch(place):
            raise FileNotFoundError(
                f"{name!r} is neither {shipped_kind}, nor a directory, nor a hub id (owner/name)"
            )
        directory = _download(place, subfolder, shipped_kind, weights)
    if not (directory / subfolder).is_dir():
        raise FileNotFoundError(f"{place!r} has no folder {subfolder!r}")
    return directory / subfolder


def _download(repo: str, subfolder: str, shipped_kind: str, weights: bool) -> Path:
    """Download the files that are read of a hub snapshot, from one folder without subfolders."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    prefix = f"{subfolder.rstrip('/')}/" if subfolder else ""
    # Few old models have a hub id without an owner; a mistyped short name is far more likely.
    hint = "" if "/" in repo else f" ({repo!r} is also not {shipped_kind}, nor a directory here)"
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
    return Path(snapshot_download(repo, allow_patterns=allowed, ignore_patterns=[f"{prefix}*/*"]))
