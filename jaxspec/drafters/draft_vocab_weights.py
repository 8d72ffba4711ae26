"""Read and write the weights of a drafter together with the map of its reduced draft vocabulary.

Files hold the map as `d2t` and `t2d` (see `jaxspec.io.weights.draft_vocab`). Variables hold its
token ids in the collection `draft` (see `jaxspec.drafters.base`).
"""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.config import DrafterConfig
from jaxspec.io.files.tensors import RenamedTensors, Tensors
from jaxspec.io.files.torch_files import open_weights
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.draft_vocab import (
    MAPPING,
    mapping_tensors,
    read_ids,
    resize_vocabulary,
    sort_rows,
)
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import Leaf, check_fit, write_tree

# What exporters put before the published names: the attributes that hold the drafter in a wrapper.
_WRAPPERS = re.compile(r"(?:(?:model|module|draft_model|eagle_module|dflash_module)\.)+")
# vLLM's name of the map.
_ALIASES = {"draft_id_to_target_id": "d2t"}


def open_drafter(directory: str | os.PathLike, config: DrafterConfig) -> Tensors:
    """Open a drafter's weights by their published names, which exporters may prefix.

    Args:
      directory: holds the weights, and config.json with the size of the vocabulary they were made
        for.
      config: of the drafter, fitted to its target: rows of tokens are padded or left out.

    Raises:
      FileNotFoundError: there are no weights.
      ValueError: files are unsafe or damaged.
    """
    found = open_weights(directory)
    names: dict[str, str] = {}
    for name in found:
        bare = _WRAPPERS.sub("", name, count=1) if _WRAPPERS.match(name) else name
        bare = _ALIASES.get(bare, bare)
        # Of two tensors with one name, the second keeps its own, by which it is reported.
        names[name if bare in names else bare] = name
    bare_found = found if list(names) == list(found) else RenamedTensors(found, names)
    stored = _stored_vocab_size(Path(directory)) or config.vocab_size
    return resize_vocabulary(bare_found, stored, config.vocab_size, config.draft_vocab_size)


def _stored_vocab_size(directory: Path) -> int | None:
    """Read the number of tokens that a drafter was made for; None if no file says it."""
    path = directory / "config.json"
    hf = read_entries(path) if path.is_file() else {}
    return (hf.get("transformer_layer_config") or hf).get("vocab_size")


def pad_vocabulary(config: Any, rows: int) -> Any:
    """Return the config of a drafter with an output projection of its own, see `Format.pad`."""
    size = config.draft_vocab_size or (config.vocab_size if config.vocab_size < rows else None)
    return dataclasses.replace(config, vocab_size=rows, draft_vocab_size=size)


def pad_tables(config: Any, rows: int) -> Any:
    """Return the config of a drafter that uses the target's output projection, see `Format.pad`."""
    return dataclasses.replace(config, vocab_size=rows)


def check_weights(
    found: Mapping[str, np.ndarray],
    leaves: list[Leaf],
    config: DrafterConfig,
    *,
    ignore: Callable[[str], bool] = lambda name: False,
    whole_map: bool = False,
) -> np.ndarray | None:
    """Check names, shapes and dtypes of tensors, and read the map of draft tokens.

    Args:
      found: tensors by name.
      leaves: table of the weights that `found` must hold.
      ignore: says whether a tensor of this name may be present unused.
      whole_map: accept the map of a whole vocabulary, which changes nothing, and check it too.

    Returns:
      Token ids int32 [D] of the reduced draft vocabulary, in the order of the file; None if the
      vocabulary is whole.

    Raises:
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: the map of draft tokens is wrong.
    """
    reduced = config.draft_vocab_size is not None
    may_map = reduced or whole_map
    check_fit(leaves, found, lambda name: (may_map and name in MAPPING) or ignore(name))
    if not reduced and not (whole_map and any(name in found for name in MAPPING)):
        return None
    ids = read_ids(found, config.draft_vocab_size or config.vocab_size, config.vocab_size)
    return ids if reduced else None


def read_weights(
    found: Mapping[str, np.ndarray], leaves: list[Leaf], ids: np.ndarray | None, dtype: str
) -> dict[str, Any]:
    """Read a drafter's variables from tensors that `check_weights` has accepted.

    Args:
      found: tensors by name; those outside `leaves` are not read.
      leaves: table of the trained weights.
      ids: what `check_weights` returned.
      dtype: `float32`, `float16` or `bfloat16`, the dtype of all weights.

    Returns:
      {"params": tree}, and {"draft": {"ids": int32 [D]}} with a reduced draft vocabulary.

    Raises:
      WeightMismatch: a tensor holds no floats.
      ValueError: a tensor holds NaN or infinity, or overflows `dtype`.
    """
    if ids is None:
        return read_tree(leaves, found, dtype, lambda name: True)
    variables = read_tree(leaves, sort_rows(found, ids), dtype, lambda name: True)
    return variables | {"draft": {"ids": jnp.asarray(np.sort(ids))}}


def write_weights(
    variables: Mapping[str, Any], leaves: list[Leaf], config: DrafterConfig
) -> dict[str, np.ndarray]:
    """Return a drafter's tensors by name, in the variables' dtype.

    `d2t` and `t2d` are among them if the draft vocabulary is reduced.

    Raises:
      ValueError: an array of `leaves` is missing or misshapen.
    """
    return write_tree(leaves, variables) | write_map(variables, config)


def write_map(
    variables: Mapping[str, Any], config: DrafterConfig, *, whole_map: bool = False
) -> dict[str, np.ndarray]:
    """Return `d2t` and `t2d` of a drafter's variables.

    Args:
      whole_map: return the map of a whole vocabulary too; otherwise return {} for it.
    """
    if config.draft_vocab_size is not None:
        ids = np.asarray(jax.device_get(variables["draft"]["ids"]))
    elif whole_map:
        ids = np.arange(config.vocab_size)
    else:
        return {}
    return mapping_tensors(ids, config.vocab_size)
