"""Three real DDTree rounds: tree mask, verification logits, acceptance and the cache after
compaction.
"""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np

import jaxspec
from jaxspec.core.cache import allocate, append, gather_path
from jaxspec.core.state import Tree
from jaxspec.core.tree import ancestor_words
from jaxspec.engine.acceptance import accept_match
from jaxspec.targets.transformer import Transformer
from pallas_kernels.reference import unpack_mask

GOLDEN = Path(__file__).parent / "golden"
LONGEST = 7


def tree_of(arrays, prefix):
    """The recorded tree as ours, batch of one."""
    parent = jnp.asarray(arrays[f"{prefix}parents"], jnp.int32)
    depth = np.concatenate([[0], arrays[f"{prefix}depths"]])
    return Tree(
        token=jnp.asarray(arrays[f"{prefix}verify_ids"].reshape(1, -1), jnp.int32),
        parent=parent[None],
        depth=jnp.asarray(depth, jnp.int32)[None],
        ancestors=ancestor_words(parent)[None],
        logprob=jnp.zeros((1, len(parent))),
        size=jnp.array([len(parent)]),
    )


def test_rounds():
    params = jaxspec.load(GOLDEN / "dflash" / "target", dtype="float32")
    config, arrays = params.spec.target, np.load(GOLDEN / "ddtree" / "round.npz")
    module = Transformer(config)
    forward = jax.jit(lambda *args: module.apply(params.target, *args, feature_layers=(1, 2, 3)))
    ids = np.load(GOLDEN / "dflash" / "forward.npz")["prompt_ids"].astype(np.int32)
    out = forward(ids, jnp.arange(ids.shape[1])[None])
    cache = append(allocate(config, 1, 64, jnp.float32), out.k, out.v, jnp.array([ids.shape[1]]))
    for prefix in ("r1_", "r2_", "r3_"):
        tree, start = tree_of(arrays, prefix), int(arrays[f"{prefix}start"])
        assert int(cache.length[0]) == start
        positions = start + tree.depth
        np.testing.assert_array_equal(positions[0], arrays[f"{prefix}verify_pos"].reshape(-1))
        seen = unpack_mask(tree.ancestors[0], tree.token.shape[1])
        np.testing.assert_array_equal(seen, arrays[f"{prefix}mask_allowed"][:, start:])
        out = forward(tree.token, positions, cache, tree.ancestors)
        logits = module.apply(params.target, out.hidden, method="logits")
        np.testing.assert_allclose(
            logits[0], arrays[f"{prefix}verify_logits"].reshape(logits.shape[1:]), rtol=0, atol=1e-4
        )
        accepted = accept_match(tree, jnp.argmax(logits, -1).astype(jnp.int32), LONGEST)
        count = int(accepted.count[0])
        np.testing.assert_array_equal(accepted.path[0, :count], arrays[f"{prefix}accepted_indices"])
        assert int(accepted.bonus[0]) == int(arrays[f"{prefix}next_token"])
        features = out.features[0, accepted.path[0, :count]]
        np.testing.assert_allclose(
            features, arrays[f"{prefix}next_target_hidden"][0], rtol=0, atol=1e-4
        )
        cache = append(
            cache,
            gather_path(out.k, accepted.path),
            gather_path(out.v, accepted.path),
            accepted.count,
        )
        if prefix == "r2_":
            check_cache(cache, arrays)


def check_cache(cache, arrays):
    """Keys and values that the reference keeps after it has compacted the second round."""
    length = int(cache.length[0])
    for layer in range(cache.k.shape[0]):
        np.testing.assert_allclose(
            cache.k[layer, :, :, :length], arrays[f"r2_cache_k{layer}"], rtol=0, atol=5e-5
        )
        np.testing.assert_allclose(
            cache.v[layer, :, :, :length], arrays[f"r2_cache_v{layer}"], rtol=0, atol=5e-5
        )
