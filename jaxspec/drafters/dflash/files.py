"""Read a block drafter's directory in any layout, and write those layouts that can be written."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.borrowed_head import borrows_head, lend_head, with_head
from jaxspec.drafters.dflash import layouts, speculators
from jaxspec.drafters.dflash.config import BlockDrafterConfig
from jaxspec.drafters.dflash.hf_config import drafter_config_to_hf
from jaxspec.drafters.dflash.weights import (
    check,
    drafter_leaves,
    from_hf,
    head_leaves,
    native_names,
    stored,
    to_hf,
)
from jaxspec.drafters.draft_vocab_weights import open_drafter, pad_tables
from jaxspec.drafters.format import About, Format, take_borrowed, write_directory
from jaxspec.drafters.hf_fields import check_fits, main_dtype
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.draft_vocab import MAPPING
from jaxspec.io.weights.weight_map import check_fit
from jaxspec.targets.weights import is_rotary_table

# A learned vector in place of the mask token's embedding, as MiMo ships it.
_MASK_EMBEDDING = "mask_embedding.pt"


def load_drafter(
    directory: str | os.PathLike, config: BlockDrafterConfig, dtype: str
) -> dict[str, Any]:
    """Read the variables of `BlockDrafter(config)`, see `jaxspec.drafters.base`.

    Args:
      directory: holds config.json, which was read as `config`, and weights.
      dtype: dtype of all weights.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, weights hold NaN, the map of draft tokens is wrong,
        or a part is not supported.
    """
    read, skip = _open(Path(directory), config)
    return from_hf(read, config, dtype, skip, borrows_head(directory))


def stored_tensors(
    directory: str | os.PathLike,
    config: BlockDrafterConfig,
    borrowed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Read the drafter's tensors by native name, in their stored dtypes; see `Format.stored`.

    Raises:
      FileNotFoundError, WeightMismatch, ValueError: as `load_drafter`; also where the output
        projection is left to a target that is not known.
    """
    read, skip = _open(Path(directory), config)
    return stored(with_head(read, directory, config, borrowed), config, skip)


def check_files(directory: str | os.PathLike, config: BlockDrafterConfig) -> None:
    """Raise what `load_drafter` would, but read no weights."""
    read, skip = _open(Path(directory), config)
    check(read, config, skip, borrows_head(directory))


def write_native(
    directory: str | os.PathLike,
    config: BlockDrafterConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write config.json and model.safetensors in the native layout of DFlash and JetSpec.

    vLLM and SGLang read it.

    Raises:
      ValueError: the draft vocabulary is reduced, see `drafter_config_to_hf`.
    """
    hf = drafter_config_to_hf(
        config, about.num_layers, about.max_positions, main_dtype(tensors), about.provenance
    )
    write_directory(directory, hf, tensors)


def write_speculators(
    directory: str | os.PathLike,
    config: BlockDrafterConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write config.json and model.safetensors in the speculators schema, which vLLM reads.

    The schema asks for the target's embeddings and output projection too. With a reduced draft
    vocabulary the projection is the drafter's own; then `tensors` holds it, `d2t` and `t2d`.

    Raises:
      ValueError: the target's name or one of its tensors is unknown, or the schema cannot
        describe the drafter.
    """
    known = (
        about.num_layers,
        about.max_positions,
        main_dtype(tensors),
        about.provenance,
        about.architecture,
    )
    write_with_target(
        directory, speculators.speculators_config_to_hf(config, *known), config, tensors, about
    )


def write_with_target(
    directory: str | os.PathLike,
    hf: Mapping[str, Any],
    config: BlockDrafterConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write a config.json and the drafter's tensors together with those of its target.

    Raises:
      ValueError: one of the target's tensors is unknown.
    """
    sources = {name: speculators.BORROWED[name] for name in speculators.borrowed_names(config)}
    write_directory(directory, hf, {**tensors, **take_borrowed(about, sources)})


def write_own(
    directory: str | os.PathLike,
    config: BlockDrafterConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write the native layout, or the speculators schema if that alone can describe the drafter."""
    if not layouts.needs_speculators(config):
        return write_native(directory, config, tensors, about)
    if not about.provenance.target:  # the schema wants a name
        about = about._replace(provenance=about.provenance._replace(target="unknown"))
    dtype = main_dtype(tensors)
    borrowed = {name: tensor.astype(dtype) for name, tensor in about.borrowed.items()}
    return write_speculators(directory, config, tensors, about._replace(borrowed=borrowed))


def _fit(config: BlockDrafterConfig, target: TargetConfig) -> BlockDrafterConfig:
    check_fits(config, target)
    return config


def _write(
    directory: str | os.PathLike, config: BlockDrafterConfig, variables: Any, about: About
) -> None:
    write_own(directory, config, to_hf(variables, config), about)


def _open(
    directory: Path, config: BlockDrafterConfig
) -> tuple[Mapping[str, np.ndarray], Callable[[str], bool]]:
    """Open the weights: (tensors by native name, whether one of another name may be present)."""
    if (directory / _MASK_EMBEDDING).is_file():
        raise ValueError(
            f"{directory} has a mask embedding of its own ({_MASK_EMBEDDING}), "
            "which is not supported"
        )
    read = native_names(open_drafter(directory, config), config)
    if not speculators.is_speculators(read_entries(directory / "config.json")):
        return read, is_rotary_table
    mapped = [name for name in MAPPING if name in read and config.draft_vocab_size is None]
    if mapped:
        raise ValueError(
            f"{directory}: {mapped[0]} maps a reduced draft vocabulary, of which config.json says "
            f"nothing: its draft_vocab_size must be below {config.vocab_size}"
        )
    borrowed = speculators.borrowed_leaves(config, read)
    names = {name for leaf in borrowed for name, *_ in leaf.parts()}
    own = [*drafter_leaves(config), *([] if borrows_head(directory) else head_leaves(config))]
    check_fit([*own, *borrowed], read, lambda name: name in MAPPING or is_rotary_table(name))
    return read, lambda name: name in names or is_rotary_table(name)


def block_format(causal: bool, names: tuple[str, ...] = ("dflash",)) -> Format:
    """Make the format of DFlash drafters, or of heads whose slots see only earlier slots.

    Args:
      causal: whether slots see only earlier slots; both kinds share the layout.
      names: names of the native layout in `jaxspec convert --to`.
    """
    writers = dict.fromkeys(names, write_native) | {"speculators": write_speculators}
    return Format(
        layouts.matches,
        layouts.read_config,
        _fit,
        load_drafter,
        check_files,
        _write,
        recognise=functools.partial(layouts.recognise, causal=causal),
        layout=layouts.layout,
        default_layers=layouts.default_layers,
        borrowed=layouts.borrowed,
        lend=lend_head,
        pad=pad_tables,
        side_files=(_MASK_EMBEDDING,),
        stored=stored_tensors,
        writers=writers,
    )
