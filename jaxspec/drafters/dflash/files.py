"""A drafter's directory in any format that can be read, and the formats that can be written."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from jaxspec.core.config import BlockDrafterConfig
from jaxspec.drafters.dflash import speculators
from jaxspec.drafters.dflash.hf_config import drafter_config, drafter_config_to_hf
from jaxspec.drafters.dflash.weights import (
    check,
    drafter_leaves,
    from_hf,
    head_leaves,
    ignored,
    native_names,
    stored,
)
from jaxspec.io.draft_vocab import MAPPING
from jaxspec.io.provenance import Provenance
from jaxspec.io.safetensors_files import WEIGHTS, read_json, write_safetensors
from jaxspec.io.torch_files import open_weights
from jaxspec.io.weight_map import check_fit

# A learned vector in place of the mask token's embedding, as MiMo ships it.
_MASK_EMBEDDING = "mask_embedding.pt"


class About(NamedTuple):
    """What writing a drafter needs to know about its target.

    Attributes:
      num_layers: decoder layers of the target.
      max_positions: its longest sequence; engines refuse longer contexts than a drafter's config
        says.
      provenance: its name, and the hashes of its tokenizer and chat template.
      architecture: as its config.json names it; None is unknown.
      borrowed: those of its tensors that the speculators schema saves with the drafter, by the
        schema's names.
    """

    num_layers: int
    max_positions: int
    provenance: Provenance = Provenance()
    architecture: str | None = None
    borrowed: Mapping[str, np.ndarray] = MappingProxyType({})


def read_config(hf: dict[str, Any]) -> BlockDrafterConfig:
    """The drafter that a config.json describes, in whatever format; ValueError where it is none
    that can be read.
    """
    return (
        speculators.speculators_config(hf) if speculators.is_speculators(hf) else drafter_config(hf)
    )


def load_drafter(
    directory: str | os.PathLike, config: BlockDrafterConfig, dtype: str
) -> dict[str, Any]:
    """Variables (see `jaxspec.drafters.base`) of the drafter in `directory`, whose config.json was
    read as `config`.

    Raises:
      FileNotFoundError: no weights.
      WeightMismatch: missing, unexpected, misshapen and non-float tensors, all in one report.
      ValueError: unsafe or damaged files, NaN, a wrong map of draft tokens, or a part that is not
        supported.
    """
    read, skip = _open(Path(directory), config)
    return from_hf(read, config, dtype, skip)


def stored_tensors(
    directory: str | os.PathLike, config: BlockDrafterConfig
) -> dict[str, np.ndarray]:
    """The drafter's tensors by native name, in their stored dtypes; checked and refused as by
    `load_drafter`.
    """
    read, skip = _open(Path(directory), config)
    return stored(read, config, skip)


def check_files(directory: str | os.PathLike, config: BlockDrafterConfig) -> None:
    """Raise what `load_drafter` would, short of reading weights: their names, shapes and dtypes are
    looked at.
    """
    read, skip = _open(Path(directory), config)
    check(read, config, skip)


def write_native(
    directory, config: BlockDrafterConfig, tensors: Mapping[str, np.ndarray], about: About
) -> None:
    """The native layout of DFlash and JetSpec, which vLLM and SGLang read: config.json and
    model.safetensors.

    Raises:
      ValueError: a reduced draft vocabulary, see `drafter_config_to_hf`.
    """
    hf = drafter_config_to_hf(
        config, about.num_layers, about.max_positions, main_dtype(tensors), about.provenance
    )
    _write(Path(directory), hf, tensors)


def write_speculators(
    directory, config: BlockDrafterConfig, tensors: Mapping[str, np.ndarray], about: About
) -> None:
    """The speculators schema, which vLLM reads; the target's embeddings and output projection go
    along, as it wants.

    With a reduced draft vocabulary the projection is the drafter's own, among `tensors` with `d2t`
    and `t2d`.

    Raises:
      ValueError: the target's name or one of those tensors is unknown, or the schema cannot say
        what the drafter is.
    """
    known = (
        about.num_layers,
        about.max_positions,
        main_dtype(tensors),
        about.provenance,
        about.architecture,
    )
    hf = speculators.speculators_config_to_hf(config, *known)
    names = speculators.borrowed_names(config)
    missing = [name for name in names if name not in about.borrowed]
    if missing:
        raise ValueError(
            f"the speculators schema saves the target's {missing[0]} with the drafter: give --target"
        )
    _write(Path(directory), hf, {**tensors, **{name: about.borrowed[name] for name in names}})


def write_own(
    directory, config: BlockDrafterConfig, tensors: Mapping[str, np.ndarray], about: About
) -> None:
    """The native layout, or where that cannot say what the drafter is, the speculators schema."""
    speak = config.draft_vocab_size is not None and not config.causal
    if (
        speak and not about.provenance.target
    ):  # the schema wants a name; the target's directory had none to give
        about = about._replace(provenance=about.provenance._replace(target="unknown"))
    (write_speculators if speak else write_native)(directory, config, tensors, about)


# What `jaxspec convert --to` can write. JetSpec heads are DFlash drafters with one flag, and share
# their layout.
WRITERS: dict[str, Callable] = {
    "dflash": write_native,
    "jetspec": write_native,
    "speculators": write_speculators,
}


def _open(directory: Path, config: BlockDrafterConfig):
    """(tensors by native name, whether a further name is to be passed over)."""
    if (directory / _MASK_EMBEDDING).is_file():
        raise ValueError(
            f"{directory} has a mask embedding of its own ({_MASK_EMBEDDING}), which is not supported"
        )
    read = native_names(open_weights(directory), config)
    if not speculators.is_speculators(read_json(directory / "config.json")):
        return read, ignored
    mapped = [name for name in MAPPING if name in read and config.draft_vocab_size is None]
    if mapped:
        raise ValueError(
            f"{directory}: {mapped[0]} maps a reduced draft vocabulary, of which config.json says nothing: its "
            f"draft_vocab_size must be below {config.vocab_size}"
        )
    borrowed = speculators.borrowed_leaves(config, read)
    names = {name for leaf in borrowed for name, *_ in leaf.parts()}
    own = [*drafter_leaves(config), *head_leaves(config)]
    check_fit([*own, *borrowed], read, lambda name: name in MAPPING or ignored(name))
    return read, lambda name: name in names or ignored(name)


def main_dtype(tensors: Mapping[str, np.ndarray]) -> str:
    """The dtype that config.json names: the one that most weights are stored in."""
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        if name in MAPPING:
            continue
        sizes[tensor.dtype.name] = sizes.get(tensor.dtype.name, 0) + tensor.size
    return max(sizes, key=sizes.__getitem__)


def _write(directory: Path, hf: dict, tensors: Mapping[str, np.ndarray]) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    write_safetensors(directory / WEIGHTS, tensors)
    (directory / "config.json").write_text(json.dumps(hf, indent=2) + "\n", encoding="utf-8")
