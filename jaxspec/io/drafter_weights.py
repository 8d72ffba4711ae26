"""Weights of a block drafter: published DFlash/JetSpec tensors to and from the parameters of `BlockDrafter`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from jaxspec.config import BlockDrafterConfig
from jaxspec.io.target_weights import decoder_layer_leaves
from jaxspec.io.weight_map import Leaf, linear, read_tree, vector, write_tree


def from_hf(read: Mapping[str, np.ndarray], config: BlockDrafterConfig, dtype: str = "float32") -> dict[str, Any]:
    """Parameters {"params": ...} of `BlockDrafter(config)` from tensors by published name; errors as for targets.

    The embedding table and output projection are the target's; a copy of them in the file is refused as unexpected.
    """
    return read_tree(drafter_leaves(config), read, dtype, lambda name: name.endswith("rotary_emb.inv_freq"))


def to_hf(params: Mapping[str, Any], config: BlockDrafterConfig) -> dict[str, np.ndarray]:
    """Tensors by published name, in the parameters' dtype."""
    return write_tree(drafter_leaves(config), params)


def drafter_leaves(config: BlockDrafterConfig) -> list[Leaf]:
    """The table of all weights of a block drafter."""
    features = len(config.feature_layers) * config.target_hidden_size
    leaves = [
        *linear(("fc",), ["fc"], features, [config.hidden_size], False),
        vector(("context_norm",), "hidden_norm", config.hidden_size),
        vector(("norm",), "norm", config.hidden_size),
    ]
    for i in range(config.num_layers):
        leaves += decoder_layer_leaves(config, i, "")
    return leaves
