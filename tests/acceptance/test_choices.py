"""Rules of acceptance: all rows choose at once as a walk does, and sequences do not mix."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from verify_trees import make_tree, stack

from jaxspec.acceptance import accept_rejection, accept_sequential
from jaxspec.acceptance.rejection import choose_by_rejection, walk_rejection
from jaxspec.acceptance.sequential import choose_in_sequence, walk_sequential
from jaxspec.core.sampling.noise import sequence_keys
from jaxspec.core.sampling.settings import make_sampling

# Two chains below the root that branch, and a third child.
PARENTS = [-1, 0, 0, 1, 1, 2, 3, 0, 3]


@functools.partial(jax.jit, static_argnames=("rule", "spec", "longest", "siblings"))
def both_ways(tree, logits, draws, q, below, *, rule, spec, values, longest, siblings):
    """What a walk down the tree accepts, and what all rows choose at once."""
    how = {"spec": spec, "values": values, "longest": longest}
    if rule == "rejection":
        how |= {"siblings": siblings}
        return [
            choose(tree, logits, draws, q, below, **how)
            for choose in (walk_rejection, choose_by_rejection)
        ]
    return [choose(tree, logits, draws, **how) for choose in (walk_sequential, choose_in_sequence)]


@pytest.mark.parametrize("rule", ["sequential", "rejection"])
@pytest.mark.parametrize(("longest", "siblings"), [(20, 20), (3, 2)])
@pytest.mark.thorough
def test_all_rows_choose_as_a_walk_does(rule, longest, siblings):
    """Trees of 1 to 20 rows with many children, repeated ones and padding, and NaN behind them."""
    rng, lengths, vocab = np.random.default_rng(9), [], 6
    spec, values = make_sampling(0.8, top_p=0.9)
    for size in [*range(1, 21)] * 4:
        reach = rng.choice([1, 4, 20])
        parents = [-1] + [int(rng.integers(max(0, i - reach), i)) for i in range(1, size)]
        tree = make_tree(rng.integers(0, vocab, size), parents, 20)
        logits = np.where(np.arange(20)[:, None] < size, rng.normal(size=(20, vocab)), np.nan)
        draws, q = rng.uniform(size=20), jax.nn.log_softmax(rng.normal(size=(4, vocab)) * 2)
        arrays = (jnp.float32(x) for x in (logits, draws, q))
        below = jnp.asarray(np.random.default_rng(size).integers(0, len(q), 20))
        (walked, expected), (chosen, left) = both_ways(
            tree,
            *arrays,
            below,
            rule=rule,
            spec=spec,
            values=values,
            longest=longest,
            siblings=siblings,
        )
        jax.tree.map(np.testing.assert_array_equal, chosen, walked)
        np.testing.assert_allclose(left, expected, atol=1e-6)
        lengths.append(int(walked.count))
    assert set(lengths) >= {1, 2, 3, 4}


@pytest.mark.parametrize("rule", ["sequential", "rejection"])
@pytest.mark.thorough
def test_sequences_do_not_depend_on_batch_or_padding(rule):
    rng = np.random.default_rng(6)
    rows = [rng.permuted(np.arange(9)) for _ in range(6)]
    logits = jnp.asarray(rng.normal(size=(6, 9, 9)), jnp.float32)
    q = jax.nn.log_softmax(jnp.asarray(rng.normal(size=(6, 3, 9)), jnp.float32))
    keys, position = sequence_keys(0, jnp.arange(6, dtype=jnp.uint32)), jnp.arange(6) + 10
    spec, values = make_sampling(1.0)

    @jax.jit
    def accept(tree, logits, q, keys, position):
        if rule == "sequential":
            return accept_sequential(tree, logits, spec, values, keys, position, 3)
        return accept_rejection(tree, logits, q, spec, values, keys, position, 3)

    narrow, wide = (stack([make_tree(row, PARENTS, width) for row in rows]) for width in (9, 40))
    padded = jnp.pad(logits, ((0, 0), (0, 31), (0, 0)), constant_values=jnp.nan)
    whole = accept(narrow, logits, q, keys, position)
    alone = accept(*jax.tree.map(lambda leaf: leaf[4:5], (wide, padded, q, keys, position)))
    assert len(set(whole.count.tolist())) > 1 and int(whole.count[4]) > 1
    jax.tree.map(lambda a, w: np.testing.assert_array_equal(a, w[4:5]), alone, whole)
