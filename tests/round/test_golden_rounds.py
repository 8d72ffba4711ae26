"""Three real DDTree rounds: tree mask, verification logits, acceptance and the cache after
compaction.
"""

import jax
import jax.numpy as jnp
import numpy as np
from golden_data import arrays, golden, numbers, target_of

import jaxspec
from jaxspec.acceptance import accept_match
from jaxspec.core.cache import allocate, append, gather_path
from jaxspec.core.state import Tree
from jaxspec.core.tree import ancestor_words
from jaxspec.targets.transformer import Transformer
from pallas_kernels.reference import unpack_mask


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
    folder = golden("dflash", "drafter")
    params = jaxspec.load(target_of("dflash"), drafter={"dflash": folder}, dtype="float32")
    config, drafter, found = (
        params.spec.target,
        params.spec.drafter("dflash"),
        arrays("ddtree", "round.npz"),
    )
    prefixes = [f"r{number}_" for number in numbers(found, "r", "_start")]
    last = prefixes[-1]
    capacity = int(found[f"{last}start"]) + found[f"{last}verify_ids"].size + drafter.block_size
    module = Transformer(config)
    forward = jax.jit(
        lambda *args: module.apply(params.target, *args, feature_layers=drafter.feature_layers)
    )
    ids = arrays("dflash", "forward.npz")["prompt_ids"].astype(np.int32)
    out = forward(ids, jnp.arange(ids.shape[1])[None])
    cache = append(
        allocate(config, 1, capacity, jnp.float32), out.k, out.v, jnp.array([ids.shape[1]])
    )
    for prefix in prefixes:
        tree, start = tree_of(found, prefix), int(found[f"{prefix}start"])
        assert int(cache.length[0]) == start
        positions = start + tree.depth
        np.testing.assert_array_equal(positions[0], found[f"{prefix}verify_pos"].reshape(-1))
        seen = unpack_mask(tree.ancestors[0], tree.token.shape[1])
        np.testing.assert_array_equal(seen, found[f"{prefix}mask_allowed"][:, start:])
        out = forward(tree.token, positions, cache, tree.ancestors)
        logits = module.apply(params.target, out.hidden, method="logits")
        np.testing.assert_allclose(
            logits[0], found[f"{prefix}verify_logits"].reshape(logits.shape[1:]), rtol=0, atol=1e-4
        )
        accepted = accept_match(tree, jnp.argmax(logits, -1).astype(jnp.int32), drafter.depth)
        count = int(accepted.count[0])
        np.testing.assert_array_equal(accepted.path[0, :count], found[f"{prefix}accepted_indices"])
        assert int(accepted.bonus[0]) == int(found[f"{prefix}next_token"])
        features = out.features[0, accepted.path[0, :count]]
        np.testing.assert_allclose(
            features, found[f"{prefix}next_target_hidden"][0], rtol=0, atol=1e-4
        )
        cache = append(
            cache,
            gather_path(out.k, accepted.path),
            gather_path(out.v, accepted.path),
            accepted.count,
        )
        if f"{prefix}cache_k0" in found:
            check_cache(cache, found, prefix)


def check_cache(cache, arrays, prefix):
    """Keys and values that the reference keeps after it has compacted a round."""
    length = int(cache.length[0])
    for layer in range(cache.k[0].shape[0]):
        np.testing.assert_allclose(
            cache.k[0][layer, :, :, :length], arrays[f"{prefix}cache_k{layer}"], rtol=0, atol=5e-5
        )
        np.testing.assert_allclose(
            cache.v[0][layer, :, :, :length], arrays[f"{prefix}cache_v{layer}"], rtol=0, atol=5e-5
        )
