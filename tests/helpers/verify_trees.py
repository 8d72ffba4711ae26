"""Trees of given rows for tests of acceptance rules."""

import jax
import jax.numpy as jnp
import numpy as np

from jaxspec.core.state import Tree


def make_tree(tokens, parents, rows=None):
    """Tree of one sequence, padded to `rows`."""
    size = len(tokens)
    rows = rows or size
    token, parent, depth = np.zeros((3, rows), np.int32)
    token[:size], parent[:size] = tokens, parents
    parent[0] = -1
    seen = np.eye(rows, -(-rows // 32) * 32, dtype=np.uint8)
    for i in range(1, size):
        seen[i] |= seen[parent[i]]
        depth[i] = depth[parent[i]] + 1
    words = np.packbits(seen, axis=-1, bitorder="little").view("<u4").astype(np.uint32)
    logprob = np.where(np.arange(rows) < size, -np.arange(rows), -np.inf).astype(np.float32)
    logprob[0] = 0
    return Tree(
        token=token,
        parent=parent,
        depth=depth,
        ancestors=words,
        logprob=logprob,
        size=np.int32(size),
    )


def stack(trees):
    return jax.tree.map(lambda *leaves: jnp.stack(leaves), *trees)
