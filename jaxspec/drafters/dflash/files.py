"""Read a block drafter's directory in any layout, and write those layouts that can be written.

A drafter with this backbone and more makes its format by `backbone_format`, too.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxspec.drafters.borrowed_head import borrows_head, lend_head, with_head
from jaxspec.drafters.dflash import speculators, weights
from jaxspec.drafters.dflash.hf_config import (
    default_feature_layers,
    drafter_config,
    drafter_config_to_hf,
)
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.draft_vocab_weights import open_drafter, pad_tables
from jaxspec.drafters.format import About, Format, tensor_writer
from jaxspec.drafters.hf_fields import Layers, check_fits, main_dtype
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.draft_vocab import MAPPING
from jaxspec.io.weights.weight_map import Leaf, check_fit
from jaxspec.targets.weights import is_rotary_table

# A learned vector in place of the mask token's embedding, as MiMo ships it.
_MASK_EMBEDDING = "mask_embedding.pt"
# Tensors by native name, and whether one of another name may be present.
Opened = tuple[Mapping[str, np.ndarray], Callable[[str], bool]]


def open_with_copies(directory: Path, config: BlockDrafterConfig) -> Opened:
    """Open weights that may hold copies of the target's, whose shapes alone are checked: decoding
    uses the target's own.
    """
    read = open_drafter(directory, config)
    copies = speculators.borrowed_leaves(config, read)
    names = {name for leaf in copies for name, *_ in leaf.parts()}
    check_fit(copies, read, lambda name: True)
    return read, lambda name: name in names or is_rotary_table(name)


def backbone_format(
    matches: Callable[[Mapping[str, Any]], bool],
    read_config: Callable[[dict[str, Any]], Any],
    list_leaves: Callable[[Any], list[Leaf]],
    native: Callable[..., None],
    schema: Callable[..., None],
    needs_schema: Callable[[Any], bool],
    open_weights: Callable[[Path, Any], Opened] = open_with_copies,
    **fields: Any,
) -> Format:
    """Make the format of a drafter with DFlash's backbone.

    Its `read` raises FileNotFoundError if there are no weights, WeightMismatch, which lists all
    tensors that are missing, unexpected, misshapen or no floats, and ValueError if files are unsafe
    or damaged, weights hold NaN or the map of draft tokens is wrong. Its `stored` raises the same,
    also where the output projection is left to a target that is not known.

    Args:
      list_leaves: config -> table of all trained weights.
      native, schema: writers of the native layout and of the speculators schema, see
        `Format.writers`.
      needs_schema: config -> whether the native layout cannot describe the drafter, and the schema
        can.
      open_weights: (directory, config) -> its weights.
      fields: others of `Format`.
    """

    def read(directory: str | os.PathLike, config: Any, dtype: str) -> dict[str, Any]:
        found, skip = open_weights(Path(directory), config)
        leaves = list_leaves(config)
        return weights.from_hf(found, config, leaves, dtype, skip, borrows_head(directory))

    def check(directory: str | os.PathLike, config: Any) -> None:
        found, skip = open_weights(Path(directory), config)
        weights.check(found, config, list_leaves(config), skip, borrows_head(directory))

    def stored(
        directory: str | os.PathLike,
        config: Any,
        borrowed: Mapping[str, np.ndarray] = MappingProxyType({}),
    ) -> dict[str, np.ndarray]:
        found, skip = open_weights(Path(directory), config)
        found = with_head(found, directory, config, borrowed)
        return weights.stored(found, config, list_leaves(config), skip)

    def write(
        directory: str | os.PathLike, config: Any, variables: Mapping[str, Any], about: About
    ) -> None:
        tensors = weights.to_hf(variables, config, list_leaves(config))
        dtype = main_dtype(tensors)
        copies = {name: tensor.astype(dtype) for name, tensor in about.borrowed.items()}
        about = about._replace(borrowed=copies)
        if not needs_schema(config):
            return native(directory, config, tensors, about)
        if not about.provenance.target:  # the schema wants a name
            about = about._replace(provenance=about.provenance._replace(target="unknown"))
        return schema(directory, config, tensors, about)

    fields = dict(pad=pad_tables, lend=lend_head, stored=stored) | fields
    return Format(matches, read_config, check_fits, read, check, write, **fields)


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json is in the DFlash layout or in the speculators schema."""
    named = str((hf.get("architectures") or [""])[0])
    return speculators.is_speculators(hf) or "DFlash" in named or "dflash_config" in hf


def read_config(hf: dict[str, Any]) -> BlockDrafterConfig:
    """Read the config of the drafter that a config.json describes, in any layout.

    Raises:
      ValueError: it describes no drafter that can be read.
    """
    if speculators.is_speculators(hf):
        return speculators.speculators_config(hf)
    return drafter_config(hf)


def recognise(hf: dict[str, Any], names: Collection[str], causal: bool) -> bool:
    """Say whether a config.json looks like a DFlash drafter's, in any layout.

    Args:
      causal: ask for JetSpec heads, whose slots see only earlier slots, instead.
    """
    own = hf.get("dflash_config") or {}
    named = str((hf.get("architectures") or [""])[0])
    if not ("DFlash" in named or own or hf.get("speculation_type") == "dflash"):
        return False
    return bool(own.get("causal_head") or own.get("causal")) == causal


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the layout that a directory is in, other than the speculators schema."""
    if "speculation_type" in hf or any(name.startswith("encoder.") for name in names):
        return "transformers"
    return "native (z-lab DFlash)" if "dflash_config" in hf else "flat"


def default_layers(hf: dict[str, Any]) -> Layers | None:
    """Return the layers that readers assume if config.json states none."""
    count = hf.get("num_target_layers")
    if not count:
        return None
    layers = default_feature_layers(count, hf["num_hidden_layers"])
    return Layers(layers, "default for num_target_layers")


def borrowed(config: BlockDrafterConfig, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter (see
    `jaxspec.drafters.format.Format`); only the speculators schema saves any.
    """
    present = needs_speculators(config) if hf is None else speculators.is_speculators(hf)
    return speculators.name_borrowed(config) if present else {}


def needs_speculators(config: BlockDrafterConfig) -> bool:
    """Say whether the native layout cannot describe the drafter."""
    return config.draft_vocab_size is not None and not config.causal


def _open(directory: Path, config: BlockDrafterConfig) -> Opened:
    """Open the weights under their native names, in any layout."""
    if (directory / _MASK_EMBEDDING).is_file():
        raise ValueError(
            f"{directory} has a mask embedding of its own ({_MASK_EMBEDDING}), "
            "which is not supported"
        )
    read = weights.native_names(open_drafter(directory, config), config)
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
    own = [
        *weights.drafter_leaves(config),
        *([] if borrows_head(directory) else weights.head_leaves(config)),
    ]
    check_fit([*own, *borrowed], read, lambda name: name in MAPPING or is_rotary_table(name))
    return read, lambda name: name in names or is_rotary_table(name)


def block_format(causal: bool, names: tuple[str, ...] = ("dflash",)) -> Format:
    """Make the format of DFlash drafters, or of heads whose slots see only earlier slots.

    vLLM and SGLang read the native layout; it has no place for a reduced draft vocabulary (see
    `drafter_config_to_hf`). vLLM reads the speculators schema, which asks for the target's
    embeddings and output projection too; of a reduced vocabulary, the projection is the drafter's.

    Args:
      causal: whether slots see only earlier slots; both kinds share the layout.
      names: names of the native layout in `jaxspec convert --to`.
    """
    native = tensor_writer(drafter_config_to_hf)
    schema = tensor_writer(speculators.speculators_config_to_hf, speculators.name_borrowed)
    return backbone_format(
        matches,
        read_config,
        weights.drafter_leaves,
        native,
        schema,
        needs_speculators,
        _open,
        recognise=functools.partial(recognise, causal=causal),
        layout=layout,
        default_layers=default_layers,
        borrowed=borrowed,
        side_files=(_MASK_EMBEDDING,),
        writers=dict.fromkeys(names, native) | {"speculators": schema},
    )
