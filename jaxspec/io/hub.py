"""Where a model's files are: one that ships with jaxspec, a local directory, or a Hugging Face hub
id.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ZOO = Path(__file__).resolve().parent.parent / "zoo"
_TEXTS = ("*.json", "*.jinja", "tokenizer.model", "merges.txt", "vocab.txt")
_FILES = (*_TEXTS, "*.safetensors", "mask_embedding.pt")
# Asked for only where there are no safetensors: many repositories hold the same weights in both.
_PICKLED = ("pytorch_model*.bin",)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*(/[\w.-]+)?")


def shipped(directory: Path | None = None) -> tuple[str, ...]:
    """Names of the models in `directory`: by default those that ship; `MODEL / "drafters"` for a
    model's drafters.
    """
    return tuple(sorted(path.parent.name for path in (directory or ZOO).glob("*/config.json")))


def resolve_model(name: str | os.PathLike, *, weights: bool = True) -> Path:
    """Directory with the files of a target model.

    Args:
      name: a model that ships (`mini`), a local directory, or a hub id; `ID::SUBFOLDER` names a
        folder inside either of the last two. Hub files come through `huggingface_hub` and its
        cache, also offline.
      weights: False leaves the weights on the hub: config and tokenizer are enough to plan with.

    Raises:
      FileNotFoundError: nothing by that name; the message says what was tried.
    """
    if str(name) in shipped():
        return ZOO / str(name)
    return _resolve(
        str(name), f"a model that ships ({', '.join(shipped()) or 'none here'})", weights
    )


def resolve_drafter(name: str | os.PathLike, model: Path) -> Path:
    """Directory with the files of a drafter: one that ships with the `model` directory, else as
    `resolve_model`.
    """
    own = shipped(model / "drafters")
    if str(name) in own:
        return model / "drafters" / str(name)
    return _resolve(
        str(name), f"a drafter that ships with {model.name} ({', '.join(own) or 'none'})"
    )


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
    """The hub snapshot of `repo`, only with the files that are read: those of one folder, not of
    the folders below it.
    """
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    prefix = f"{subfolder.rstrip('/')}/" if subfolder else ""
    # Without an owner only a handful of old models have a hub id; a mistyped short name is far more
    # likely.
    hint = "" if "/" in repo else f" ({repo!r} is also not {shipped_kind}, nor a directory here)"
    try:
        path = _snapshot(repo, prefix, _FILES if weights else _TEXTS)
        if weights and not any((path / subfolder).glob("*.safetensors")):
            path = _snapshot(repo, prefix, _FILES + _PICKLED)
    except LocalEntryNotFoundError:
        raise FileNotFoundError(
            f"{repo} is not in the local Hugging Face cache and the hub cannot be reached (or HF_HUB_OFFLINE is set): "
            f"go online once, or pass a directory{hint}"
        ) from None
    except (HfHubHTTPError, HFValidationError) as error:
        reason = str(error).strip().splitlines()[0]
        raise FileNotFoundError(
            f"{repo} cannot be had from the Hugging Face hub: {reason}; check the name, or log in with `hf auth login`{hint}"
        ) from None
    return path


def _snapshot(repo: str, prefix: str, patterns: tuple[str, ...]) -> Path:
    from huggingface_hub import snapshot_download

    allowed = [f"{prefix}{pattern}" for pattern in patterns]
    return Path(snapshot_download(repo, allow_patterns=allowed, ignore_patterns=[f"{prefix}*/*"]))
