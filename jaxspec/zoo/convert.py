"""Write a drafter in another format. Tensors are copied as stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.files import borrowed_tensors, read_config
from jaxspec.drafters.format import About
from jaxspec.drafters.registry import record_of, records
from jaxspec.io import provenance
from jaxspec.io.config_entries import read_entries
from jaxspec.io.torch_files import open_weights
from jaxspec.targets.hf_config import target_config
from jaxspec.targets.hf_fields import integer
from jaxspec.targets.registry import family_of
from jaxspec.targets.weights import EMBEDDING, HEAD, stored_name
from jaxspec.zoo.fit import fit_drafter
from jaxspec.zoo.places import open_target, resolve_drafter, resolve_model


def list_layouts() -> list[str]:
    """List all layouts that drafters can be written in."""
    formats = [record.files for record in records() if record.files is not None]
    return sorted({name for one in formats for name in one.writers})


def convert(source, destination, to: str, target=None) -> Path:
    """Write the drafter `source` to `destination` in the format `to`, without changing weights.

    Args:
      source: directory or hub id, or the name of a drafter that ships with `target`.
      destination: directory to create; it must not hold a model yet.
      to: `dflash` or `jetspec` (one native layout, for vLLM and SGLang), `dflash2`, `dspark`
        (DeepSpec's layout), or `speculators` (vLLM).
      target: the model that the drafter serves. Needed if the source lacks information:
        `speculators` and `dspark` save the target's embeddings with the drafter, and others' files
        in the speculators schema do not record the target's number of layers.

    Returns:
      `destination`.

    Raises:
      FileExistsError: `destination` holds a config.json.
      ValueError: the source cannot be read or does not fit `target`, or the format cannot hold it.
    """
    known = list_layouts()
    if to not in known:
        raise ValueError(f"unknown format {to!r}: choose one of {', '.join(known)}")
    destination = Path(destination)
    if (destination / "config.json").exists():
        raise FileExistsError(f"{destination} holds a model already: choose another directory")
    model = resolve_model(target) if target is not None else None
    directory = (
        resolve_drafter(source, target, model) if target is not None else resolve_model(source)
    )
    hf = read_entries(directory / "config.json")
    config = read_config(hf)
    record = record_of(config)
    if to not in record.files.writers:
        choices = " or ".join(record.files.writers)
        what = f"write it with --to {choices}" if choices else "its files cannot be converted"
        raise ValueError(f"{directory} is a {record.name} drafter: {what}")
    if model is None:
        about = _as_recorded(directory, hf, config)
    else:
        own = target_config(read_entries(model / "config.json"))
        config = fit_drafter(config, directory, own, model)
        about = _of_target(model, provenance.recorded(hf))
    record.files.writers[to](destination, config, record.files.stored(directory, config), about)
    return destination


class _TargetTensors(Mapping):
    """The target's embedding table and output projection by Llama's names, read on access."""

    def __init__(self, model: Path, config: TargetConfig):
        self._files, self._config = open_target(model), config

    def __getitem__(self, name: str) -> np.ndarray:
        if name not in (EMBEDDING, HEAD):
            raise KeyError(name)
        return self._files[stored_name(self._config, name)]

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
