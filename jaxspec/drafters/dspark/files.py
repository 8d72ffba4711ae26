"""Read and write a DSpark drafter's directory: DeepSpec's layout and the speculators schema.

Both save copies of the target's embedding table and output projection. Reading checks their shapes
and leaves them alone: decoding uses the target's own.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np

from jaxspec.core.config import TargetConfig
from jaxspec.drafters.borrowed_head import borrows_head, lend_head, with_head
from jaxspec.drafters.dflash import weights
from jaxspec.drafters.dflash.files import write_with_target
from jaxspec.drafters.dflash.speculators import BORROWED, borrowed_leaves, borrowed_names
from jaxspec.drafters.draft_vocab_weights import open_drafter, pad_tables
from jaxspec.drafters.dspark import speculators
from jaxspec.drafters.dspark.config import DSparkConfig
from jaxspec.drafters.dspark.hf_config import dspark_config, dspark_config_to_hf, is_deepspec
from jaxspec.drafters.dspark.weights import dspark_leaves
from jaxspec.drafters.format import About, Format
from jaxspec.drafters.hf_fields import check_fits, main_dtype
from jaxspec.io.weights.weight_map import check_fit
from jaxspec.targets.weights import is_rotary_table


def matches(hf: Mapping[str, Any]) -> bool:
    """Say whether a config.json is a DSpark drafter's, or DeepSpec's own DFlash, in any layout."""
    if "speculators_model_type" in hf:
        return hf["speculators_model_type"] == speculators.TYPE
    return "DSpark" in str((hf.get("architectures") or [""])[0]) or "markov_rank" in hf


def read_config(hf: dict[str, Any]) -> DSparkConfig:
    """Read the config of the drafter that a config.json describes, in any layout.

    Raises:
      ValueError: it describes no drafter that can be read.
    """
    return speculators.dspark_config(hf) if "speculators_model_type" in hf else dspark_config(hf)


def load_drafter(directory: str | os.PathLike, config: DSparkConfig, dtype: str) -> dict[str, Any]:
    """Read the variables of `DSpark(config)`, see `jaxspec.drafters.base`.

    Raises:
      FileNotFoundError: there are no weights.
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: files are unsafe or damaged, weights hold NaN, or the map of draft tokens is
        wrong.
    """
    read, skip = _open(Path(directory), config)
    borrows, leaves = borrows_head(directory), dspark_leaves(config)
    return weights.from_hf(read, config, dtype, skip, borrows, leaves)


def stored_tensors(
    directory: str | os.PathLike,
    config: DSparkConfig,
    borrowed: Mapping[str, np.ndarray] = MappingProxyType({}),
) -> dict[str, np.ndarray]:
    """Read the drafter's tensors by name, in their stored dtypes; see `Format.stored`.

    Raises:
      FileNotFoundError, WeightMismatch, ValueError: as `load_drafter`; also where the output
        projection is left to a target that is not known.
    """
    read, skip = _open(Path(directory), config)
    read = with_head(read, directory, config, borrowed)
    return weights.stored(read, config, skip, dspark_leaves(config))


def check_files(directory: str | os.PathLike, config: DSparkConfig) -> None:
    """Raise what `load_drafter` would, but read no weights."""
    read, skip = _open(Path(directory), config)
    weights.check(read, config, skip, borrows_head(directory), dspark_leaves(config))


def write_native(
    directory: str | os.PathLike,
    config: DSparkConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write DeepSpec's layout.

    Raises:
      ValueError: one of the target's tensors is unknown.
    """
    hf = dspark_config_to_hf(
        config, about.num_layers, about.max_positions, main_dtype(tensors), about.provenance
    )
    write_with_target(directory, hf, config, tensors, about)


def write_speculators(
    directory: str | os.PathLike,
    config: DSparkConfig,
    tensors: Mapping[str, np.ndarray],
    about: About,
) -> None:
    """Write the speculators schema, which vLLM reads.

    Raises:
      ValueError: the target's name or one of its tensors is unknown, or the schema cannot
        describe the drafter.
    """
    hf = speculators.dspark_config_to_hf(config, about, main_dtype(tensors))
    write_with_target(directory, hf, config, tensors, about)


def write(
    directory: str | os.PathLike, config: DSparkConfig, variables: Mapping[str, Any], about: About
) -> None:
    """Write DeepSpec's layout, or the speculators schema if that alone can describe the drafter.

    A causal backbone can be described by neither; its files are read by this library alone.
    """
    tensors = weights.to_hf(variables, config, dspark_leaves(config))
    dtype = main_dtype(tensors)
    about = about._replace(
        borrowed={name: tensor.astype(dtype) for name, tensor in about.borrowed.items()}
    )
    if is_deepspec(config) or not speculators.describes(config):
        return write_native(directory, config, tensors, about)
    if not about.provenance.target:  # the schema wants a name
        about = about._replace(provenance=about.provenance._replace(target="unknown"))
    return write_speculators(directory, config, tensors, about)


def borrowed(config: DSparkConfig, hf: dict[str, Any] | None = None) -> dict[str, str]:
    """Name the target's tensors that are saved with the drafter (see
    `jaxspec.drafters.format.Format`).
    """
    return {name: BORROWED[name] for name in borrowed_names(config)}


def layout(hf: dict[str, Any], names: Collection[str]) -> str:
    """Name the layout that a directory is in, other than the speculators schema."""
    kind = "DSpark" if hf.get("markov_rank") else "its own DFlash, whose anchor proposes too"
    return f"native (DeepSpec: {kind})"


def _fit(config: DSparkConfig, target: TargetConfig) -> DSparkConfig:
    check_fits(config, target)
    return config


def _open(
    directory: Path, config: DSparkConfig
) -> tuple[Mapping[str, np.ndarray], Callable[[str], bool]]:
    """Open the weights: (tensors by name, whether one of another name may be present)."""
    read = open_drafter(directory, config)
    copies = borrowed_leaves(config, read)
    names = {name for leaf in copies for name, *_ in leaf.parts()}
    check_fit(copies, read, lambda name: True)
    return read, lambda name: name in names or is_rotary_table(name)


FORMAT = Format(
    matches,
    read_config,
    _fit,
    load_drafter,
    check_files,
    write,
    layout=layout,
    borrowed=borrowed,
    lend=lend_head,
    pad=pad_tables,
    stored=stored_tensors,
    writers={"dspark": write_native, "speculators": write_speculators},
)
