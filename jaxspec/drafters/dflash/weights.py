"""Weights of a block drafter: published DFlash and JetSpec tensors, to and from the variables of
`BlockDrafter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.draft_vocab_weights import check_weights, read_weights, write_weights
from jaxspec.drafters.leaves import make_head_leaf
from jaxspec.io.files.tensors import RowReader, Tensors, find_row_reader
from jaxspec.io.weights.draft_vocab import mapping_tensors, sort_rows
from jaxspec.io.weights.load_tree import read_tree
from jaxspec.io.weights.weight_map import (
    Leaf,
    WeightMismatch,
    linear,
    read_stored,
    vector,
    write_tree,
)
from jaxspec.targets.layer_leaves import decoder_layer_leaves
from jaxspec.targets.weights import is_rotary_table

# How transformers' own DFlash classes call and fuse tensors.
_RENAMED = {
    "encoder.fc.weight": "fc.weight",
    "encoder.output_norm_enc.weight": "hidden_norm.weight",
}
_FUSED = {
    "qkv_proj.weight": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj.weight": ("gate_proj", "up_proj"),
}


def from_hf(
    read: Mapping[str, np.ndarray],
    config: BlockDrafterConfig,
    leaves: list[Leaf],
    dtype: str = "float32",
    ignore: Callable[[str], bool] = is_rotary_table,
    borrows_head: bool = False,
) -> dict[str, Any]:
    """Read the variables of `BlockDrafter(config)` from tensors by published name.

    The embedding table and output projection are the target's; a copy of them in the file is
    unexpected. With a reduced draft vocabulary the projection is the drafter's own, and the
    collection `draft` holds it together with the token ids.

    Args:
      leaves: table of the trained weights.
      ignore: says whether a tensor of this name may be present unused.
      borrows_head: whether the projection to a reduced draft vocabulary is left to the target;
        then `draft` holds the ids alone, see `jaxspec.drafters.borrowed_head`.

    Raises:
      WeightMismatch: tensors are missing, unexpected, misshapen or no floats; reports all of them.
      ValueError: weights hold NaN or overflow `dtype`, or the map of draft tokens is wrong.
    """
    ids = check(read, config, leaves, ignore, borrows_head)
    variables = read_weights(read, leaves, ids, dtype)
    if ids is None or borrows_head:
        return variables
    read = sort_rows(read, ids)
    head = read_tree(head_leaves(config), read, dtype, lambda name: True)["params"]
    return variables | {"draft": variables["draft"] | head}


def to_hf(
    params: Mapping[str, Any], config: BlockDrafterConfig, leaves: list[Leaf]
) -> dict[str, np.ndarray]:
    """Return tensors by published name, in the parameters' dtype; `leaves` as for `from_hf`."""
    tensors = write_weights(params, leaves, config)
    if config.draft_vocab_size is None:
        return tensors
    return tensors | write_tree(head_leaves(config), {"params": params["draft"]})


def stored(
    read: Mapping[str, np.ndarray],
    config: BlockDrafterConfig,
    leaves: list[Leaf],
    ignore: Callable[[str], bool] = is_rotary_table,
) -> dict[str, np.ndarray]:
    """Read tensors by published name, in their stored dtypes; `leaves` as for `from_hf`.

    Raises:
      WeightMismatch, ValueError: as `from_hf`.
    """
    ids = check(read, config, leaves, ignore)
    read = read if ids is None else sort_rows(read, ids)
    tensors = read_stored([*leaves, *head_leaves(config)], read, lambda name: True)
    return tensors if ids is None else tensors | mapping_tensors(np.sort(ids), config.vocab_size)


def check(
    read: Mapping[str, np.ndarray],
    config: BlockDrafterConfig,
    leaves: list[Leaf],
    ignore: Callable[[str], bool] = is_rotary_table,
    borrows_head: bool = False,
) -> np.ndarray | None:
    """Raise what `from_hf` would, but read no weights; see `check_weights` for the result."""
    wanted = [*leaves, *([] if borrows_head else head_leaves(config))]
    return check_weights(read, wanted, config, ignore=ignore)


def drafter_leaves(config: BlockDrafterConfig) -> list[Leaf]:
    """List the leaves of all trained weights of a block drafter."""
    features = len(config.feature_layers) * config.target_hidden_size
    leaves = [
        *linear(("fc",), ["fc"], features, [config.hidden_size], False),
        vector(("context_norm",), "hidden_norm", config.hidden_size),
        vector(("norm",), "norm", config.hidden_size),
    ]
    for i in range(config.num_layers):
        leaves += decoder_layer_leaves(config, i, "")
    return leaves


def head_leaves(config: BlockDrafterConfig) -> list[Leaf]:
    """List the leaf of a reduced draft vocabulary's output projection; a whole one has none."""
    return [] if config.draft_vocab_size is None else [make_head_leaf(config)]


def native_names(
    read: Mapping[str, np.ndarray], config: BlockDrafterConfig
) -> Mapping[str, np.ndarray]:
    """Return `read` by published name.

    transformers' own DFlash classes say `encoder.fc` and fuse the projections. Tensors that have
    published names already are returned as they are. Unknown ones keep their names, by which they
    are reported.
    """
    variant = any(name in _RENAMED or name.endswith(tuple(_FUSED)) for name in read)
    return _Native(read, config) if variant else read


class _Native(Tensors):
    """A view of tensors under published names; parts of a fused tensor [out, in] are its rows."""

    def __init__(self, read: Mapping[str, np.ndarray], config: BlockDrafterConfig):
        self._read = read
        queries, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        rows = {
            "qkv_proj.weight": (queries, keys, keys),
            "gate_up_proj.weight": (config.ffn_size, config.ffn_size),
        }
        self._home: dict[str, tuple[str, slice | None]] = {}
        for name in read:
            ending = next((end for end in _FUSED if name.endswith("." + end)), None)
            if ending is None:
                self._put(_RENAMED.get(name, name), name, None)
                continue
            sizes = rows[ending]
            if self._shape_of(name)[:1] != (sum(sizes),):
                raise WeightMismatch(
                    [], [], {name: (self._shape_of(name), (sum(sizes), config.hidden_size))}
                )
            start = 0
            for part, size in zip(_FUSED[ending], sizes, strict=True):
                self._put(
                    name.removesuffix(ending) + f"{part}.weight", name, slice(start, start + size)
                )
                start += size

    def _put(self, name: str, home: str, rows: slice | None) -> None:
        if name in self._home:
            raise WeightMismatch([], [home], {})
        self._home[name] = (home, rows)

    def __getitem__(self, name: str) -> np.ndarray:
        home, rows = self._home[name]
        return self._read[home] if rows is None else self._read[home][rows]

    def shape(self, name: str) -> tuple[int, ...]:
        home, rows = self._home[name]
        shape = self._shape_of(home)
        return shape if rows is None else (rows.stop - rows.start, *shape[1:])

    def dtype(self, name: str) -> str:
        return self._read.dtype(self._home[name][0])

    def row_reader(self, name: str) -> RowReader:
        home, rows = self._home[name]
        read, first = find_row_reader(self._read, home), rows.start if rows else 0
        return lambda start, stop, memory: read(start + first, stop + first, memory)

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return self._read.shape(name)
