"""The best entries of a vocabulary that devices share, without gathering it.

Each device finds the best of its part, and all gather these few. Values and indices travel
together, because a small collective costs its latency.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jax import lax
from jax.sharding import PartitionSpec

from jaxspec.core.mesh import MODEL, current

# (x [..., N], k) -> the k largest values and their indices [..., k], the largest first, the lower
# index first among equals.
Search: TypeAlias = Callable[[jax.Array, int], tuple[jax.Array, jax.Array]]


def is_split(x: jax.Array) -> bool:
    """Whether the devices of the current layout share the last axis of x [..., V]."""
    layout = current()
    return layout is not None and layout.splits(x.shape[-1])


def find_best(x: jax.Array, k: int, search: Search) -> tuple[jax.Array, jax.Array]:
    """Find the k largest entries of x [..., V]; on every device its own ones first, if they share
    V.

    Args:
      x: 16- or 32-bit float without NaN.
      k: at most V.
      search: finds the largest on one device.

    Returns:
      What `search(x, k)` does.
    """
    layout = current()
    if layout is None or not is_split(x):
        return search(x, k)
    split = PartitionSpec(*(None,) * (x.ndim - 1), MODEL)
    both = (PartitionSpec(), PartitionSpec())
    merge = functools.partial(_merge, k=k, search=search)
    return jax.shard_map(merge, mesh=layout.mesh, in_specs=split, out_specs=both, check_vma=False)(
        x
    )


def _merge(part: jax.Array, k: int, search: Search) -> tuple[jax.Array, jax.Array]:
    """Search one part, gather what all devices found, and search that."""
    values, index = search(part, min(k, part.shape[-1]))
    index = index + lax.axis_index(MODEL) * part.shape[-1]
    bits = lax.bitcast_convert_type(values.astype(jnp.float32), jnp.int32)
    found = lax.all_gather(jnp.stack([bits, index]), MODEL, axis=values.ndim, tiled=True)
    # Parts come in order, so the first of equals has the lowest index.
    best, place = lax.top_k(lax.bitcast_convert_type(found[0], jnp.float32), k)
    return best.astype(part.dtype), jnp.take_along_axis(found[1], place, axis=-1)
