"""Write a drafter in another format. Tensors are copied as stored; packed ones become bfloat16, and
so do those of a target in a GGUF file.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.core.runtime.near_miss import choose_one
from jaxspec.drafters.files import borrowed_tensors, find_config
from jaxspec.drafters.format import About
from jaxspec.drafters.registry import record_of, records
from jaxspec.io.files.atomic import staging
from jaxspec.io.files.torch_files import open_weights
from jaxspec.io.weights import provenance
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.targets.families.hf_config import target_config
from jaxspec.targets.families.hf_fields import integer
from jaxspec.targets.families.registry import family_of
from jaxspec.targets.gguf_files.layout import is_gguf
from jaxspec.targets.weights import EMBEDDING, HEAD, stored_name
from jaxspec.zoo.drafters import fit_drafter
from jaxspec.zoo.pack import is_packed, shorten_unpacked
from jaxspec.zoo.packaged import PACKAGED
from jaxspec.zoo.places import open_target, resolve_drafter, resolve_model


def list_layouts() -> list[str]:
    """List all layouts that drafters can be written in."""
    formats = [record.files for record in records() if record.files is not None]
    return sorted({name for one in formats for name in one.writers})


def convert(source, destination, to: str, target=None, verifier: str | None = None) -> Path:
    """Write the drafter `source` to `destination` in the format `to`, without changing weights.

    Args:
      source: directory or hub id, or the name of a drafter that ships with `target`.
      destination: directory to create; it must not hold a model yet.
      to: `dflash` or `jetspec` (one native layout, for vLLM and SGLang), `dflash2`, `dspark`
        (DeepSpec's layout), `eagle3` (SpecForge's and SGLang's), `griffin` and `treeflash` (the
        authors'), or `speculators` (vLLM).
      target: the model that the drafter serves. Needed if the source lacks information:
        `speculators`, `dspark` and `griffin` save the target's embeddings with the drafter, a
        source may leave its output projection to the target, and others' files in the speculators
        schema do not record the target's number of layers.
      verifier: hub id (or folder) of the target, by which readers of `speculators` load it. By
        default the hub id that is known for the target, else the name that the drafter recorded.

    Returns:
      `destination`.

    Raises:
      FileExistsError: `destination` holds a config.json.
      ValueError: the source cannot be read or does not fit `target`, the format cannot hold it, or
        `verifier` is given for another format.
    """
    known = list_layouts()
    if to not in known:
        raise ValueError(f"unknown format {to!r}: {choose_one(to, known)}")
    if verifier is not None and to != "speculators":
        raise ValueError(
            "a verifier is named in the speculators schema alone: give --to speculators"
        )
    destination = Path(destination)
    if (destination / "config.json").exists():
        raise FileExistsError(f"{destination} holds a model already: choose another directory")
    model = resolve_model(target) if target is not None else None
    directory = (
        resolve_drafter(source, target, model) if target is not None else resolve_model(source)
    )
    hf = read_entries(directory / "config.json")
    config = find_config(directory)
    record = record_of(config)
    if to not in record.files.writers:
        choices = " or ".join(record.files.writers)
        what = f"write it with --to {choices}" if choices else "its files cannot be converted"
        article = "an" if record.name[0] in "aeiou" else "a"
        raise ValueError(f"{directory} is {article} {record.name} drafter: {what}")
    if model is None:
        about = _as_recorded(directory, hf, config)
    else:
        own = target_config(read_entries(model / "config.json"))
        config = fit_drafter(config, directory, own, model)
        about = _of_target(model, provenance.recorded(hf))
    if to == "speculators":
        about = about._replace(provenance=_name_verifier(about.provenance, target, verifier))
    tensors = record.files.stored(directory, config, about.borrowed)
    if is_packed(directory):
        tensors = shorten_unpacked(tensors)
    with staging(destination) as folder:
        record.files.writers[to](folder, config, tensors, about)
    return destination


def is_hub_id(name: str) -> bool:
    """Whether a name has the form of a hub id, OWNER/NAME."""
    return re.fullmatch(r"[\w.-]+/[\w.-]+", name) is not None


def read_verifier(directory: Path) -> str:
    """Read the target's name in the speculators schema."""
    hf = read_entries(directory / "config.json")
    return hf["speculators_config"]["verifier"]["name_or_path"]


def _name_verifier(
    known: provenance.Provenance, target: Any, verifier: str | None
) -> provenance.Provenance:
    """Return the record of the target with the name by which readers load it."""
    packaged = PACKAGED.get(str(target))
    name = verifier or (packaged.hub_id if packaged else known.target)
    if verifier is not None and not (is_hub_id(verifier) or Path(verifier).is_dir()):
        raise ValueError(
            f"verifier is {verifier!r}: give the target's hub id, OWNER/NAME, or its folder"
        )
    return known if name == known.target else known._replace(target=name, revision=None)


class _TargetTensors(Mapping):
    """The target's embedding table and output projection by Llama's names, read on access."""

    def __init__(self, model: Path, config: TargetConfig):
        self._files, self._config, self._short = open_target(model), config, is_gguf(model)

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in (EMBEDDING, HEAD):
            raise KeyError(name)
        tensor = self._files[stored_name(self._config, name)]
        # Other engines read no blocks of llama.cpp, and these hold fewer bits than bfloat16.
        return tensor.astype(ml_dtypes.bfloat16) if self._short else tensor

    def __iter__(self) -> Iterator[str]:
        return iter((EMBEDDING, HEAD))

    def __len__(self) -> int:
        return 2


def _of_target(model: Path, recorded: provenance.Provenance) -> About:
    """Describe the target by its own files, but keep all fields that the drafter recorded.

    They describe the target that the drafter was trained with.
    """
    config = target_config(read_entries(model / "config.json"))
    found = provenance.of_target(model)
    kept = {field: value for field, value in recorded._asdict().items() if value is not None}
    if is_hub_id(found.target or "") and not is_hub_id(recorded.target or ""):
        kept = {name: kept[name] for name in kept if name not in ("target", "revision")}
    return About(
        config.num_layers,
        config.max_positions,
        found._replace(**kept),
        family_of(config).architecture,
        _TargetTensors(model, config),
    )


def _as_recorded(directory: Path, hf: dict[str, Any], config: Any) -> About:
    """Describe the target by the drafter's record of it."""
    own, layers = hf.get("jaxspec") or {}, hf.get("transformer_layer_config") or hf
    count = own.get("num_target_layers") or hf.get("num_target_layers")
    if count is None:
        raise ValueError(f"{directory} does not say how many layers its target has: give --target")
    architectures = ((hf.get("speculators_config") or {}).get("verifier") or {}).get(
        "architectures"
    ) or [None]
    names = borrowed_tensors(config, hf)
    tensors = open_weights(directory) if names else {}
    borrowed = {source: tensors[name] for name, source in names.items() if name in tensors}
    positions = integer(layers, "max_position_embeddings")
    return About(count, positions, provenance.recorded(hf), architectures[0], borrowed)
