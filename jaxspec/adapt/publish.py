"""Publication: write the master weights into the copy that decodes, in place."""

from __future__ import annotations

import hashlib
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.params import Params
from jaxspec.targets.layouts.registry import strip


def _cast(serving: Any, theta: Any) -> Any:
    return jax.tree.map(lambda old, new: new.astype(old.dtype), serving, theta)


# Without keep_unused, JAX drops the argument whose values are not read, and nothing is reused.
_publish = jax.jit(_cast, donate_argnums=0, keep_unused=True)


def publish(serving: Any, theta: Any) -> Any:
    """Return `theta` in the dtypes of `serving`, in its buffers: `serving` is donated.

    Shapes and dtypes stay, so programs that decode with the result are not compiled again. Visits
    of the device that were dispatched before keep the old weights.
    """
    return _publish(serving, theta)


def copy_weights(params: Any) -> Any:
    """Copy weights, so that the copy may be donated."""
    return jax.tree.map(jnp.copy, params)


def hash_weights(params: Any) -> str:
    """Return a digest of all bits of a pytree of arrays."""
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        array = np.asarray(leaf)
        found.update(f"{jax.tree_util.keystr(path)}{array.dtype}{array.shape}".encode())
        found.update(array.tobytes())
    return found.hexdigest()[:16]


def identify_weights(params: Params, drafter: str) -> dict[str, str]:
    """Return digests of the target and of a drafter, see `sum_bits`."""
    # How weights lie depends on the device.
    return {"target": sum_bits(strip(params.target)), "drafter": sum_bits(params.drafter(drafter))}


def sum_bits(params: Any) -> str:
    """Return a digest of a pytree of arrays that is computed on the device.

    It tells weights of equal shapes apart without copying them to the host: of every array it sums
    the bit patterns, modulo 2**32, so it is the same on every device.
    """
    found = hashlib.sha256()
    for path, leaf in jax.tree_util.tree_leaves_with_path(params):
        name = jax.tree_util.keystr(path)
        found.update(f"{name}{leaf.dtype}{leaf.shape}{int(_sum_bits(leaf))}".encode())
    return found.hexdigest()[:16]


@jax.jit
def _sum_bits(leaf: jax.Array) -> jax.Array:
    if jnp.issubdtype(leaf.dtype, jnp.floating):
        leaf = jax.lax.bitcast_convert_type(leaf, f"uint{8 * leaf.dtype.itemsize}")
    return leaf.astype(jnp.uint32).sum(dtype=jnp.uint32)
