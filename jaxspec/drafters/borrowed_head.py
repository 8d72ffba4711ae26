"""Drafters whose files leave the output projection to the target.

With a reduced draft vocabulary, a block drafter's projection consists of rows of the target's,
which are not trained. A file that says so, `"output_projection": "target"` in the `jaxspec` object
of its config.json, is smaller by half; the rows are taken from the target when both are loaded.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from jaxspec.core.config import DrafterConfig, TargetConfig
from jaxspec.io.weights.config_entries import read_entries
from jaxspec.io.weights.draft_vocab import read_ids
from jaxspec.targets.head import select_columns
from jaxspec.targets.weights import HEAD

# The entry of config.json and its value.
ENTRY, TARGET = "output_projection", "target"
# Tensors that such a file leaves out: the projection, and the target's embeddings, which some
# layouts store and which are never read.
LEFT_OUT = ("lm_head.weight", "embed_tokens.weight")


def borrows_head(directory: str | os.PathLike) -> bool:
    """Whether the drafter in `directory` leaves its output projection to the target."""
    return (read_entries(Path(directory) / "config.json").get("jaxspec") or {}).get(ENTRY) == TARGET


def with_head(
    read: Mapping[str, np.ndarray],
    directory: str | os.PathLike,
    config: DrafterConfig,
    target: Mapping[str, np.ndarray],
) -> Mapping[str, np.ndarray]:
    """Return a drafter's tensors with the rows of the target that its files leave out.

    Args:
      read: tensors of the drafter by name.
      directory: holds its files.
      config: of the drafter.
      target: tensors of the target by Llama's names, as far as they are known.

    Raises:
      ValueError: the rows are left to a target that is not known.
    """
    if not borrows_head(directory):
        return read
    if HEAD not in target:
        raise ValueError(f"{directory} leaves its output projection to the target: give --target")
    size = config.draft_vocab_size or config.vocab_size
    rows = read_ids(read, size, config.vocab_size)
    tensors = {name: read[name] for name in read if name not in LEFT_OUT}
    return tensors | {HEAD: target[HEAD][rows]}


def lend_head(
    variables: dict[str, Any], target: Any, config: TargetConfig, directory: str | os.PathLike
) -> dict[str, Any]:
    """Add the target's rows to the variables of a drafter that leaves its projection to it.

    Args:
      variables: of the drafter; `draft` holds the ids of its vocabulary.
      target: variables of the target, quantised or not.
      config: of the target.
      directory: holds the drafter's files.
    """
    if not borrows_head(directory):
        return variables
    columns = select_columns(target, config, variables["draft"]["ids"])
    dtype = target["params"]["norm"]["scale"].dtype
    return variables | {"draft": variables["draft"] | {"lm_head": columns.astype(dtype)}}
