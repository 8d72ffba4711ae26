"""LTD's observations, trees and committed tokens against the released environment's."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
from golden_data import arrays

from jaxspec.builders import StepCandidates
from jaxspec.builders.trees.dynamic import grow_dynamic
from jaxspec.builders.trees.rows import choose_rows
from jaxspec.policies.learned.ltd_features import depth_observation, pool_size, size_observation
from training.replay.committed import committed_of_pool, committed_of_tree

GOLDEN = arrays("ltd", "env_cycles.npz")
W, STEPS, CYCLES = int(GOLDEN["W"]), 12, int(GOLDEN["n_cycles"])
# Sizes that trees are cut to: the recorded ones, and small ones.
SIZES = tuple(sorted({1, 2, 3, 4, 6, 8, 11, *(int(GOLDEN[f"c{i}_V"]) + 1 for i in range(CYCLES))}))


def cycle(number: int) -> dict[str, np.ndarray]:
    return {
        name.split("_", 1)[1]: value
        for name, value in GOLDEN.items()
        if name.startswith(f"c{number}_")
    }


def padded(scores: np.ndarray) -> np.ndarray:
    """Scores of a pool that has room for all steps; what is not generated yet holds something that
    must not be seen.
    """
    return np.pad(scores, (0, pool_size(W, STEPS) - len(scores)), constant_values=7.0)


def test_observations():
    see_depth = jax.jit(functools.partial(depth_observation, width=W))
    see_size = jax.jit(functools.partial(size_observation, width=W))
    assert see_depth(np.zeros(1210), jnp.int32(0), 0).shape == (128,) and see_size(
        np.zeros(1210), jnp.int32(0), 0
    ).shape == (1268,)
    for number in range(CYCLES):
        g = cycle(number)
        scores, context, steps = padded(g["scores"]), g["seq_len_before"], int(g["depth"])
        np.testing.assert_allclose(see_size(scores, context, steps), g["obs_size"], atol=1e-6)
        # Row 0 shows the scores of the cycle before, in place of the root's; the one after the last
        # action is not used.
        for step, expected in enumerate(g["obs_depth_seq"][: steps + 1]):
            if step == 0:
                expected = np.concatenate([scores[:W], np.zeros(90), expected[100:]])
            np.testing.assert_allclose(see_depth(scores, context, step), expected, atol=1e-6)


@functools.cache
def growth():
    built = grow_dynamic(W, STEPS + 1, max(SIZES))
    return jax.jit(built.init), jax.jit(built.grow)


def rebuilt(g):
    """The pool that our builder makes of the cycle's proposals."""
    init, grow = growth()
    limit = jnp.int32(STEPS + 1)
    pool, nodes = init(
        StepCandidates(g["tokens"][None, None, :W], g["scores"][None, None, :W]), limit
    )
    for step in range(int(g["depth"])):
        part = slice(pool_size(W, step), pool_size(W, step + 1))
        above = np.asarray(pool.logprob)[np.asarray(nodes.node)]
        own = g["scores"][part].reshape(W, W) - above[:, None]
        pool, nodes = grow(
            pool,
            nodes,
            StepCandidates(g["tokens"][part].reshape(W, 1, W), own[:, None]),
            jnp.int32(step),
            limit,
        )
    return pool


def paths(tokens, mask) -> set[tuple[int, ...]]:
    return {tuple(tokens[row].tolist()) for row in mask}


def walked(tree, following, size: int) -> int:
    """Tokens that the first `size` rows commit, by walking down."""
    row, count = 0, 1
    for token in following:
        found = [
            i
            for i in range(1, min(size, int(tree.size)))
            if tree.parent[i] == row and tree.token[i] == token
        ]
        if not found:
            return count
        row, count = found[0], count + 1
    return count


def test_trees_and_committed_tokens():
    cut = jax.jit(functools.partial(choose_rows, rows=max(SIZES), longest=STEPS + 1))
    table = jax.jit(functools.partial(committed_of_pool, width=W, sizes=SIZES))
    of_tree = jax.jit(functools.partial(committed_of_tree, sizes=SIZES))
    text = np.concatenate(
        [cycle(number)["committed"] for number in range(CYCLES)] + [np.full(STEPS + 1, -1)]
    )
    at = 0
    for number in range(CYCLES):
        g = cycle(number)
        pool, count = rebuilt(g), len(g["scores"])
        np.testing.assert_array_equal(
            np.asarray(pool.parent)[:count], np.repeat(g["parents"] - 1, W)[:count]
        )
        np.testing.assert_allclose(np.asarray(pool.logprob)[:count], g["scores"], atol=1e-5)
        rows = 1 + min(int(g["V"]), count)
        tree = jax.tree.map(np.asarray, cut(pool, g["root_token"]))
        ours = np.unpackbits(tree.ancestors[:rows].view(np.uint8), axis=1, bitorder="little")[
            :, :rows
        ].astype(bool)
        theirs = np.unpackbits(g["tree_mask"], axis=1)[:, :rows].astype(bool)
        assert paths(tree.token[:rows], ours) == paths(g["verify_tokens"], theirs)
        assert sorted(tree.depth[:rows]) == sorted(g["pos"] - g["pos"][0])
        assert text[at + int(g["n_committed"])] in (g["bonus"], -1)
        committed = np.asarray(table(pool, text[at + 1 : at + 2 + STEPS]))
        assert committed[int(g["depth"]), SIZES.index(int(g["V"]) + 1)] == g["n_committed"]
        by_walking = [walked(tree, text[at + 1 : at + 2 + STEPS], size) for size in SIZES]
        assert (
            committed[int(g["depth"])].tolist()
            == of_tree(tree, text[at + 1 : at + 2 + STEPS])[0].tolist()
            == by_walking
        )
        assert committed[0].max() <= 2 and (np.diff(committed, axis=1) >= 0).all()
        at += int(g["n_committed"])
