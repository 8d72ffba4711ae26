"""A drafter's directory in any format that can be read, and the formats that can be written."""

from __future__ import annotations

import functools
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.dflash import speculators
from jaxspec.drafters.dflash.config import BlockDrafterConfig
from jaxspec.drafters.dflash.hf_config import (
    default_feature_layers,
    drafter_config,
    drafter_config_to_hf,
)
from jaxspec.drafters.dflash.weights import (
    check,
    drafter_leaves,
    from_hf,
    head_leaves,
    ignored,
    native_names,
    stored,
    to_hf,
)
from jaxspec.drafters.feature_layers import Layers
from jaxspec.drafters.format import About, Format, write_directory
from jaxspec.drafters.hf_fields import check_fits, main_dtype
from jaxspec.io.config_entries import read_entries
from jaxspec.io.draft_vocab import MAPPING
from jaxspec.io.torch_files import open_weights
from jaxspec.io.weight_map import check_fit

# A learned vector in place of the mask token's embedding, as MiMo ships it.
_MASK_EMBEDDING = "mask_embedding.pt"


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
    directory: str | os.PathLike,
    config: BlockDrafterConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """The native layout of DFlash and JetSpec, which vLLM and SGLang read: config.json and
    model.safetensors.

    Raises:
      ValueError: a reduced draft vocabulary, see `drafter_config_to_hf`.
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
    sources = {name: speculators.BORROWED[name] for name in speculators.borrowed_names(config)}
    missing = [name for name, source in sources.items() if source not in about.borrowed]
    if missing:
        raise ValueError(
            f"the speculators schema saves the target's {missing[0]} with the drafter: give --target"
        )
    copies = {name: about.borrowed[source] for name, source in sources.items()}
    write_directory(directory, hf, {**tensors, **copies})


def write_own(
    directory: str | os.PathLike,
    config: BlockDrafterConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """The native layout, or where that cannot say what the drafter is, the speculators schema."""
    if not _needs_speculators(config):
        return write_native(directory, config, tensors, about)
    if not about.provenance.target:  # the schema wants a name
        about = about._replace(provenance=about.provenance._replace(target="unknown"))
    dtype = main_dtype(tensors)
    borrowed = {name: tensor.astype(dtype) for name, tensor in about.borrowed.items()}
    return write_speculators(directory, config, tensors, about._replace(borrowed=borrowed))


def matches(hf: Mapping[str, Any]) -> bool:
    """Whether a config.json is in the DFlash layout or in the speculators schema."""
    named = str((hf.get("architectures") or [""])[0])
    return speculators.is_speculators(hf) or "DFlash" in named or "dflash_config" in hf


def recognise(hf: dict[str, Any], names: Collection[str], causal: bool) -> bool:
    """Whether a config.json looks like one of a DFlash drafter, or with `causal` of a JetSpec
    head, in any layout.
    """
    own = hf.get("dflash_config") or {}
    named = str((hf.get("architectures") or [""])[0])
    if not ("DFlash" in named or own or hf.get("speculation_type") == "dflash"):
        return False
    return bool(own.get("causal_head") or own.get("causal")) == causal


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Which of the layouts other than the speculators schema."""
    if "speculation_type" in hf or any(name.startswith("encoder.") for name in names):
        return "transformers"
    return "native (z-lab DFlash)" if "dflash_config" in hf else "flat"


def default_layers(hf: dict[str, Any]) -> Layers | None:
    """The layers that readers assume where config.json states none."""
    count = hf.get("num_target_layers")
    if not count:
        return None
    layers = default_feature_layers(count, hf["num_hidden_layers"])
    return Layers(layers, "default for num_target_layers")


def borrowed(config: BlockDrafterConfig, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """See `jaxspec.drafters.format.Format`; only the speculators schema saves tensors of the
    target.
    """
    present = _needs_speculators(config) if hf is None else speculators.is_speculators(hf)
    names = speculators.borrowed_names(config) if present else []
    return {name: speculators.BORROWED[name] for name in names}


def _fit(config: BlockDrafterConfig, target: TargetConfig) -> BlockDrafterConfig:
    check_fits(config, target)
    return config


def _write(
    directory: str | os.PathLike, config: BlockDrafterConfig, variables: Any, about: About
) -> None:
    write_own(directory, config, to_hf(variables, config), about)


def _needs_speculators(config: BlockDrafterConfig) -> bool:
    """Whether the native layout cannot say what the drafter is."""
    return config.draft_vocab_size is not None and not config.causal


def _open(directory: Path, config: BlockDrafterConfig):
    """(tensors by native name, whether a further name is to be passed over)."""
    if (directory / _MASK_EMBEDDING).is_file():
        raise ValueError(
            f"{directory} has a mask embedding of its own ({_MASK_EMBEDDING}), which is not supported"
        )
    read = native_names(open_weights(directory), config)
    if not speculators.is_speculators(read_entries(directory / "config.json")):
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


def block_format(causal: bool, names: tuple[str, ...] = ("dflash",)) -> Format:
    """The files of DFlash drafters, or of heads whose slots see only earlier slots.

    Args:
      causal: of the drafters that the files hold; both kinds share the layout.
      names: what `jaxspec convert --to` calls the native layout.
    """
    writers = dict.fromkeys(names, write_native) | {"speculators": write_speculators}
    return Format(
        matches,
        read_config,
        _fit,
        load_drafter,
        check_files,
        _write,
        recognise=functools.partial(recognise, causal=causal),
        layout=layout,
        default_layers=default_layers,
        borrowed=borrowed,
        side_files=(_MASK_EMBEDDING,),
        stored=stored_tensors,
        writers=writers,
    )
