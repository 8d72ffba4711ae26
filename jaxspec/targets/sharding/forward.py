"""The forward pass of a target whose weights several devices share.

Each device runs its share of every layer inside `jax.shard_map`, so that kernels see arrays of one
device. Two sums over the devices per layer are all that they exchange. The output projection is
outside: XLA leaves its logits split by token.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import jax
from jax.sharding import PartitionSpec

from jaxspec.core.config import TargetConfig
from jaxspec.core.mesh import MODEL, Layout, current
from jaxspec.targets.layouts.registry import is_per_output
from jaxspec.targets.sharding.shares import Split, find_split, share_of
from jaxspec.targets.transformer import ForwardOutput, Transformer

# Caches of each group [L, B, K, S, D], and new rows [L, B, T, K, D].
CACHE = PartitionSpec(None, None, MODEL)
ROWS = PartitionSpec(None, None, None, MODEL)


def bind_target(model: Transformer, variables: Any) -> Callable[..., Any]:
    """Bind a target's weights to its functions, for the layout that programs are traced for.

    Returns:
      A function of the arguments of `model.apply` without the variables. With a layout, the forward
      pass takes no `earlier` rows.
    """
    layout = current()
    if layout is None:
        return functools.partial(model.apply, variables)
    return functools.partial(_apply, model, variables, layout)


def _apply(
    model: Transformer,
    variables: Any,
    layout: Layout,
    *args: Any,
    method: str | None = None,
    feature_layers: tuple[int, ...] = (),
) -> Any:
    if method is not None:
        return model.apply(variables, *args, method=method)
    share = Transformer(share_of(model.config, layout.devices), MODEL)
    layers = {name: _without_head(collection) for name, collection in variables.items()}
    tokens, positions, cache, mask = (*args, None, None)[:4]

    splits = find_splits(layers, model.config, layout.devices)

    def run(layers: Any, tokens: Any, positions: Any, cache: Any, mask: Any) -> ForwardOutput:
        own = jax.tree.map(_take_own, layers, splits)
        return share.apply(own, tokens, positions, cache, mask, feature_layers)

    whole = PartitionSpec()
    weights = jax.tree.map(lambda leaf, split: split.spec(leaf.ndim), layers, splits)
    split = jax.tree.map(lambda leaf: CACHE if leaf.ndim == 5 else whole, cache)
    forward = jax.shard_map(
        run,
        mesh=layout.mesh,
        in_specs=(weights, whole, whole, split, whole),
        out_specs=ForwardOutput(whole, whole, ROWS, ROWS),
        check_vma=False,
    )
    return forward(layers, tokens, positions, cache, mask)


def find_splits(variables: Any, config: TargetConfig, devices: int) -> Any:
    """Find how devices share every array of a widened target's variables."""

    def split(path: tuple, leaf: Any) -> Split:
        collection, *names = (key.key for key in path)
        return find_split(tuple(names), config, devices, scale=is_per_output(collection))

    return jax.tree_util.tree_map_with_path(split, variables)


def _take_own(leaf: jax.Array, split: Split) -> jax.Array:
    """Drop the axis of devices, of which this one has a single entry."""
    if split.order is None:
        return leaf
    return leaf.reshape(*leaf.shape[:-2], leaf.shape[-1])


def _without_head(collection: Mapping[str, Any]) -> dict[str, Any]:
    return {name: leaf for name, leaf in collection.items() if name != "lm_head"}
