"""Weights of a block drafter: published DFlash/JetSpec tensors to and from the parameters of
`BlockDrafter`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.drafters.dflash.config import BlockDrafterConfig
from jaxspec.io.draft_vocab import MAPPING, mapping_tensors, read_ids
from jaxspec.io.tensors import Tensors
from jaxspec.io.weight_map import (
    Leaf,
    WeightMismatch,
    check_fit,
    linear,
    read_stored,
    read_tree,
    vector,
    write_tree,
)
from jaxspec.targets.weights import decoder_layer_leaves

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
    dtype: str = "float32",
    ignore: Callable[[str], bool] | None = None,
) -> dict[str, Any]:
    """Variables of `BlockDrafter(config)` from tensors by published name; errors as for targets.

    The embedding table and output projection are the target's; a copy of them in the file is
    refused as unexpected. With a reduced draft vocabulary the projection is the drafter's own, and
    stands with the token ids in the collection `draft`.

    Args:
      ignore: names that may be present and are not used; None: `ignored`.
    """
    check(read, config, ignore)
    variables = read_tree(drafter_leaves(config), read, dtype, lambda name: True)
    if config.draft_vocab_size is None:
        return variables
    head = read_tree(head_leaves(config), read, dtype, lambda name: True)["params"]
    return variables | {"draft": head | {"ids": jnp.asarray(_ids(read, config))}}


def to_hf(params: Mapping[str, Any], config: BlockDrafterConfig) -> dict[str, np.ndarray]:
    """Tensors by published name, in the parameters' dtype."""
    tensors = write_tree(drafter_leaves(config), params)
    if config.draft_vocab_size is None:
        return tensors
    ids = np.asarray(jax.device_get(params["draft"]["ids"]))
    return (
        tensors
        | write_tree(head_leaves(config), {"params": params["draft"]})
        | mapping_tensors(ids, config.vocab_size)
    )


def stored(
    read: Mapping[str, np.ndarray],
    config: BlockDrafterConfig,
    ignore: Callable[[str], bool] | None = None,
) -> dict[str, np.ndarray]:
    """The tensors by published name, in their stored dtypes; checked and refused as by
    `from_hf`.
    """
    check(read, config, ignore)
    tensors = read_stored([*drafter_leaves(config), *head_leaves(config)], read, lambda name: True)
    return (
        tensors
        if config.draft_vocab_size is None
        else tensors | {name: read[name] for name in MAPPING}
    )


def check(
    read: Mapping[str, np.ndarray],
    config: BlockDrafterConfig,
    ignore: Callable[[str], bool] | None = None,
) -> None:
    """Raise what `from_hf` would, short of reading weights: their names, shapes and dtypes, and the
    map of draft tokens.
    """
    skip = ignore or ignored
    reduced = config.draft_vocab_size is not None
    leaves = [*drafter_leaves(config), *head_leaves(config)]
    check_fit(leaves, read, lambda name: skip(name) or (reduced and name in MAPPING))
    if reduced:
        _ids(read, config)


def _ids(read: Mapping[str, np.ndarray], config: BlockDrafterConfig) -> np.ndarray:
    return read_ids(read, config.draft_vocab_size, config.vocab_size)


def drafter_leaves(config: BlockDrafterConfig) -> list[Leaf]:
    """The table of all trained weights of a block drafter."""
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
    """The table of the output projection of a reduced draft vocabulary; empty where the target's is
    used.
    """
    if config.draft_vocab_size is None:
        return []
    return [
        Leaf(
            ("lm_head",),
            (("lm_head.weight",),),
            ((config.draft_vocab_size, config.hidden_size),),
            transpose=True,
        )
    ]


def ignored(name: str) -> bool:
    """Whether a tensor that is no parameter may stand beside them: some writers save the rotary
    frequencies.
    """
    return name.endswith("rotary_emb.inv_freq")


def native_names(
    read: Mapping[str, np.ndarray], config: BlockDrafterConfig
) -> Mapping[str, np.ndarray]:
    """`read` by published name: transformers' own DFlash classes say `encoder.fc` and fuse the
    projections.

    Tensors that carry published names already come back as they are, and unknown ones keep theirs,
    to be reported by it.
    """
    variant = any(name in _RENAMED or name.endswith(tuple(_FUSED)) for name in read)
    return _Native(read, config) if variant else read


class _Native(Tensors):
    """A view of tensors under published names; a part of a fused tensor is rows of it, [out,
    in].
    """

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

    def _shape_of(self, name: str) -> tuple[int, ...]:
        return self._read.shape(name)
