"""The chain: the best candidate of every depth (DFlash's draft)."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.state import Tree
from jaxspec.core.tree import assemble, chain_words


def chain(
    token: jax.Array, logprob: jax.Array, root: jax.Array, depth_limit: jax.Array, rows: int
) -> Tree:
    """Build one tree (no batch axis) of at most `rows` rows; arguments as in `best_first`, with C
    >= 1.
    """
    usable = (logprob[: rows - 1, 0] > -jnp.inf) & (jnp.arange(rows - 1) < depth_limit)
    row = np.arange(rows, dtype=np.int32)
    return assemble(
        token=jnp.append(root, token[: rows - 1, 0]),
        parent=jnp.asarray(row - 1),
        depth=jnp.asarray(row),
        logprob=jnp.append(jnp.float32(0), jnp.cumsum(logprob[: rows - 1, 0])),
        size=1 + jnp.sum(jnp.cumprod(usable), dtype=jnp.int32),
        words=chain_words(rows),
    )
