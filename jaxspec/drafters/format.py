"""File formats of drafters: how each is read and written."""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Callable, Collection, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.hf_fields import Layers, main_dtype, own_fields, own_layers
from jaxspec.io.files.atomic import staging, write_text
from jaxspec.io.files.safetensors_files import WEIGHTS, write_safetensors
from jaxspec.io.files.torch_files import open_weights
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.provenance import Provenance
from jaxspec.io.weights.weight_map import Leaf, check_fit, write_tree


class About(NamedTuple):
    """Facts about the target that writing a drafter needs.

    Attributes:
      num_layers: number of decoder layers of the target.
      max_positions: length of its longest sequence; engines refuse contexts that are longer than a
        drafter's config says.
      provenance: name of the target, and hashes of its tokenizer and chat template.
      architecture: name of the architecture in its config.json; None if unknown.
      borrowed: the target's tensors that the layout saves with the drafter, by their names in
        Llama's files.
    """

    num_layers: int
    max_positions: int
    provenance: Provenance = Provenance()
    architecture: str | None = None
    borrowed: Mapping[str, np.ndarray] = MappingProxyType({})


def _no_borrowed(config: Any, hf: dict[str, Any] | None = None) -> dict[str, str]:
    return {}


def _lend_nothing(
    variables: dict[str, Any], target: Any, config: TargetConfig, directory: Any
) -> dict[str, Any]:
    return variables


def _keep(config: Any, rows: int) -> Any:
    return config


def _native(hf: dict[str, Any], names: Collection[str]) -> str:
    return "native"


@dataclasses.dataclass(frozen=True, eq=False)
class Format:
    """The files of one drafter: a directory with config.json and weights.

    Attributes:
      matches: config.json -> whether `config_from_hf` reads it.
      config_from_hf: config.json -> config, as far as the file states it.
      for_target: (config, TargetConfig) -> the full config; ValueError if it does not fit.
      pad: (config, rows) -> the config for a target whose embedding table has this many rows, see
        `jaxspec.drafters.files.pad_vocabulary`.
      read: (directory, config, dtype) -> variables, see `jaxspec.drafters.base`.
      check: (directory, config) -> None; raises what `read` would, without reading weights.
      write: (directory, config, variables, About) -> None.
      identify: (config.json, function that lists the names of tensors) -> config of files that
        `matches` does not know, because their config.json could be another drafter's; None: they
        are not this drafter's. It lists names only if config.json allows for it.
      recognise: (config.json, names of tensors) -> whether `jaxspec inspect` calls it this drafter;
        None: use `matches`.
      layout: (config.json, names of tensors) -> name of the layout of a recognised drafter.
      default_layers: config.json -> the target layers that readers assume if no field states them,
        or None.
      borrowed: (config, config.json or None) -> {tensor: Llama's name for it} of the target's
        tensors that are saved with the drafter: in the files of this config.json, or, with None,
        in the files that `write` makes.
      weights: names of weight files other than the usual ones, the preferred one first.
      side_files: names of further files that change what the drafter computes.
      lend: (variables, target's variables, TargetConfig, directory) -> the variables with what the
        files in `directory` leave to the target.
      stored: (directory, config, tensors of the target by Llama's names, as far as they are known)
        -> tensors in their stored dtypes, for `writers`.
      writers: {layout: writer} of the layouts that `jaxspec convert --to` writes; a writer is
        (directory, config, tensors, About) -> None.
    """

    matches: Callable[[dict[str, Any]], bool]
    config_from_hf: Callable[[dict[str, Any]], Any]
    for_target: Callable[[Any, TargetConfig], Any]
    read: Callable[[Any, Any, str], dict[str, Any]]
    check: Callable[[Any, Any], None]
    write: Callable[[Any, Any, Mapping[str, Any], About], None]
    identify: Callable[[dict[str, Any], Callable[[], Collection[str]]], Any] | None = None
    recognise: Callable[[dict[str, Any], Collection[str]], bool] | None = None
    layout: Callable[[dict[str, Any], Collection[str]], str] = _native
    default_layers: Callable[[dict[str, Any]], Layers | None] = own_layers
    borrowed: Callable[..., dict[str, str]] = _no_borrowed
    weights: tuple[str, ...] = ()
    side_files: tuple[str, ...] = ()
    lend: Callable[[dict[str, Any], Any, TargetConfig, Any], dict[str, Any]] = _lend_nothing
    pad: Callable[[Any, int], Any] = _keep
    stored: Callable[[Any, Any, Mapping[str, np.ndarray]], dict[str, np.ndarray]] | None = None
    writers: Mapping[str, Callable[..., None]] = dataclasses.field(default_factory=dict)


def named(*architectures: str) -> Callable[[Mapping[str, Any]], bool]:
    """Make a `matches` that accepts a config.json which names one of `architectures`."""
    return lambda hf: (hf.get("architectures") or [None])[0] in architectures


def json_writer(
    config_to_hf: Callable[[Any, About, str], dict[str, Any]],
    tensors: Callable[[Mapping[str, Any], Any], dict[str, np.ndarray]],
    weights: str = WEIGHTS,
) -> Callable[[Any, Any, Mapping[str, Any], About], None]:
    """Make the `write` of a format.

    It writes config.json from `config_to_hf(config, about, dtype)` and a file called `weights` with
    `tensors(variables, config)`.
    """

    def write(
        directory: str | os.PathLike, config: Any, variables: Mapping[str, Any], about: About
    ) -> None:
        found = tensors(variables, config)
        write_directory(directory, config_to_hf(config, about, main_dtype(found)), found, weights)

    return write


def tensor_writer(
    config_to_hf: Callable[[Any, About, str], dict[str, Any]],
    borrowed: Callable[[Any], Mapping[str, str]] = _no_borrowed,
    rename: Callable[[str], str] = str,
) -> Callable[[Any, Any, Mapping[str, np.ndarray], About], None]:
    """Make a writer of a layout, see `Format.writers`.

    It raises a ValueError if one of the target's tensors that the layout saves is unknown.

    Args:
      config_to_hf: (config, about, dtype) -> config.json.
      borrowed: config -> {name in the layout: Llama's name} of the target's tensors that it saves.
      rename: a tensor's native name -> its name in this layout.
    """

    def write(
        directory: str | os.PathLike, config: Any, tensors: Mapping[str, np.ndarray], about: About
    ) -> None:
        hf = config_to_hf(config, about, main_dtype(tensors))
        own = {rename(name): tensor for name, tensor in tensors.items()}
        write_directory(directory, hf, own | _take_borrowed(about, borrowed(config)))

    return write


def write_directory(
    directory: str | os.PathLike,
    hf: Mapping[str, Any],
    tensors: Mapping[str, np.ndarray],
    weights: str = WEIGHTS,
) -> None:
    """Make a directory; write config.json and a safetensors file called `weights` to it, or none."""
    with staging(directory) as folder:
        write_safetensors(folder / weights, tensors)
        write_text(folder / "config.json", json.dumps(hf, indent=2) + "\n")


def _take_borrowed(about: About, names: Mapping[str, str]) -> dict[str, np.ndarray]:
    """Return the target's tensors that a layout saves with a drafter.

    Args:
      names: {name in the layout: Llama's name}.

    Raises:
      ValueError: one of them is unknown.
    """
    missing = [name for name, source in names.items() if source not in about.borrowed]
    if missing:
        raise ValueError(
            f"this layout saves the target's {missing[0]} with the drafter: give --target"
        )
    return {name: about.borrowed[source] for name, source in names.items()}


def simple_format(
    architecture: str, config_class: type, leaves: Callable[[Any], list[Leaf]]
) -> Format:
    """Make a format for your own drafter.

    config.json holds `architecture` and the config's fields; model.safetensors holds the tensors of
    `leaves(config)`.

    Args:
      config_class: dataclass with the fields of `jaxspec.core.config.DrafterConfig`; all fields are
        numbers, strings, booleans, None or tuples of them.
      leaves: config -> table of all weights, see `jaxspec.io.weights.weight_map`.
    """
    fields = dataclasses.fields(config_class)

    def config_from_hf(hf: dict[str, Any]) -> Any:
        own = hf.get("jaxspec")
        own = own if isinstance(own, dict) else {}
        # A null entry reads like a missing one, so fields that default to None may be absent.
        needed = [field.name for field in fields if field.default is not None]
        missing = [name for name in needed if name not in own]
        if missing:
            raise ValueError(f"config.json lacks 'jaxspec.{missing[0]}', a field of {architecture}")
        known = [field.name for field in fields if field.name in own]
        return config_class(**{name: _tuples(own[name]) for name in known})

    def config_to_hf(config: Any, about: About, dtype: str) -> dict[str, Any]:
        own = own_fields(config, about.num_layers, about.provenance) | dataclasses.asdict(config)
        return {"architectures": [architecture], "model_type": "jaxspec", "dtype": dtype} | {
            "vocab_size": config.vocab_size,
            "jaxspec": own,
        }

    def for_target(config: Any, target: TargetConfig) -> Any:
        if config.vocab_size != target.vocab_size:
            raise ValueError(
                f"the drafter does not fit the target: its vocabulary has {config.vocab_size} "
                f"tokens, the target's {target.vocab_size}; use a drafter made for this target"
            )
        return config

    def read(directory: str | os.PathLike, config: Any, dtype: str) -> dict[str, Any]:
        return read_tree(leaves(config), open_weights(directory), dtype)

    def check(directory: str | os.PathLike, config: Any) -> None:
        check_fit(leaves(config), open_weights(directory), lambda name: False)

    def tensors(variables: Mapping[str, Any], config: Any) -> dict[str, np.ndarray]:
        return write_tree(leaves(config), variables)

    write = json_writer(config_to_hf, tensors)
    return Format(named(architecture), config_from_hf, for_target, read, check, write)


def _tuples(value: Any) -> Any:
    """Turn the lists of a JSON value back into tuples."""
    return tuple(map(_tuples, value)) if isinstance(value, list) else value
