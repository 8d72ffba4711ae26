import json

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import arrays

from jaxspec.builders import Proposes, static
from jaxspec.builders.trees.paths import choose_paths, make_paths, skips_ranks
from jaxspec.core.state import Candidates
from jaxspec.core.tree import validate


def ranked(depth: int, width: int, seeds: int) -> Candidates:
    """Candidates whose tokens tell their depth and rank apart: 100 * depth + rank."""
    logprob = -np.sort(
        np.random.default_rng(0).exponential(2, (seeds, depth, width)).astype(np.float32)
    )
    token = 100 * np.arange(1, depth + 1)[:, None] + np.arange(width)
    return Candidates(np.tile(token.astype(np.int32), (seeds, 1, 1)), logprob)


def rank_paths(tree, b: int) -> list[tuple[int, ...]]:
    paths = [()]
    for row in range(1, int(tree.size[b])):
        paths.append((*paths[int(tree.parent[b, row])], int(tree.token[b, row]) % 100))
    return paths


def test_holds_medusas_tree_buffers():
    """Its rows are ours in another order: Medusa's are sorted by length, ours by the round's
    scores.
    """
    golden = arrays("medusa", "buffers.npz")
    choices = json.loads(str(golden["choices"]))
    builder = static(choices).bind(Proposes(5, 5, 257, 9))
    rows = 1 + len(choices)
    width, longest = 1 + max(map(max, choices)), max(map(len, choices))
    assert (builder.rows, builder.candidates, builder.longest) == (rows, width, longest)
    candidates = ranked(5, width + 2, seeds=3)
    trees = jax.jit(builder.build)(candidates, jnp.array([7, 8, 9]), jnp.array([5, 5, 5]))
    validate(trees)
    assert trees.size.tolist() == [rows] * 3 and trees.token[:, 0].tolist() == [7, 8, 9]
    wanted = [(), *sorted(map(tuple, choices), key=lambda path: (len(path), path))]
    orders = []
    for b in range(3):
        paths = rank_paths(trees, b)
        order = np.array([paths.index(path) for path in wanted])
        depth = np.asarray(trees.depth[b])[order]
        np.testing.assert_array_equal(depth, golden["medusa_position_ids"])
        slots = np.where(
            depth > 0, width * (depth - 1) + np.asarray(trees.token[b])[order] % 100 + 1, 0
        )
        np.testing.assert_array_equal(slots, golden["tree_indices"])
        words = np.asarray(trees.ancestors[b])[order]
        sees = (words[:, order // 32] >> (order % 32).astype(np.uint32)) & 1
        np.testing.assert_array_equal(sees, golden["medusa_attn_mask"][0, 0])
        leaves = set(range(rows)) - {wanted.index(path[:-1]) for path in wanted if path}
        retrieved = {tuple(int(i) for i in row if i >= 0) for row in golden["retrieve_indices"]}
        assert {tuple(np.flatnonzero(sees[leaf]).tolist()) for leaf in leaves} == retrieved
        steps = np.asarray(candidates.logprob[b], np.float64)
        scores = [sum(steps[d, r] for d, r in enumerate(path)) for path in paths]
        np.testing.assert_allclose(trees.logprob[b], scores, rtol=1e-6)
        orders.append(paths)
    assert orders[0] != orders[1]


def test_equal_scores_go_by_rank_path_and_unusable_nodes_are_left_out():
    paths = make_paths([[1], [0, 1], [0], [1, 0], [0, 0]])
    builder = static(paths).bind(Proposes(2, 2, 50, 1))
    near = [[-1, -1.5], [-0.5 - 2.0**-22, -1]]  # (0, 0) is worse than (1), by little
    logprob = np.array(
        [[[-1, -1], [0, -1]], [[-1, -1], [0, -np.inf]], [[-1, -1], [0, -1]], near], np.float32
    )
    candidates = Candidates(ranked(2, 2, seeds=4).token, logprob)
    trees = jax.jit(builder.build)(candidates, jnp.array([1, 2, 3, 4]), jnp.array([2, 2, 1, 2]))
    validate(trees)
    assert rank_paths(trees, 0) == [(), (0,), (0, 0), (1,), (1, 0), (0, 1)]
    assert rank_paths(trees, 1) == [(), (0,), (0, 0), (1,), (1, 0)]
    assert rank_paths(trees, 2) == [(), (0,), (1,)]
    assert rank_paths(trees, 3)[:4] == [(), (0,), (1,), (0, 0)]


def test_equal_trees_share_a_builder():
    made = make_paths([[1], [0], [0, 0]])
    assert made == make_paths(
        np.array([0]) if path == 0 else path for path in ((0, 0), 0, [np.int64(1)])
    )
    sizes = Proposes(3, 3, 50, 8)
    assert static(made) == static([[0], [1], [0, 0]])
    assert static(made).bind(sizes) is static([[0], [1], [0, 0]]).bind(sizes)
    assert (
        not skips_ranks(made)
        and skips_ranks(make_paths([[0], [0, 1]]))
        and skips_ranks(make_paths([[1]]))
    )


@pytest.mark.parametrize(
    ("paths", "message"),
    [
        ([], "paths is empty: list the rank path of every node"),
        (3, "paths must be a list of lists of ranks"),
        ([[0], [0.5]], "paths must be a list of lists of ranks"),
        ([[0], []], r"path \[\] is not a node"),
        ([[-1]], r"path \[-1\] is not a node: give one or more ranks, from 0"),
        ([[0], [1], [0]], r"path \[0\] is listed twice"),
        ([[0], [1, 0]], r"path \[1, 0\] has no parent: list \[1\] too"),
        (
            [[0], [0, 0], [0, 0, 0], [0, 0, 0, 0]],
            "paths are up to 4 deep, the drafter drafts 3: give shorter paths or a larger block",
        ),
        ([[50]], "paths hold rank 50: ranks end at 49, the vocabulary's last"),
    ],
)
def test_wrong_paths(paths, message):
    with pytest.raises(ValueError, match=message) as error:
        static(paths).bind(Proposes(3, 3, 50, 8))
    assert "\n" not in str(error.value)


def test_a_tree_of_its_own_spends_the_budget():
    """Without paths the tree is the one that is most probable for a drafter of these sizes."""
    growth = static().bind(Proposes(4, 4, 50, 12))
    assert (growth.rows, growth.longest) == (12, 4)
    assert static().bind(Proposes(4, 4, 50, 1)).rows == 1
    narrow = static().bind(Proposes(2, 2, 2, 12))
    assert (narrow.rows, narrow.candidates, narrow.longest) == (7, 2, 2)
    steps = static().bind(Proposes(5, 2, 50, 12, steps=True))
    assert (steps.rows, steps.slots, steps.steps) == (12, 2, 2) and steps.longest <= 5


def test_paths_go_by_probability():
    """Behind the second level stand only paths whose first rank is 0."""
    paths = choose_paths(2, 3, 40)
    assert paths[:4] == ((0,), (0, 0), (1,), (0, 0, 0)) and len(set(paths)) == 40
    assert {path[:-1] for path in paths} <= {(), *paths} and max(map(len, paths)) == 6
    assert all(path[0] == 0 for path in paths if len(path) > 2)
    assert (1, 0) in paths and (0, 1, 0) in paths
    with pytest.raises(ValueError, match="hit is 1: give a probability between 0 and 1"):
        choose_paths(2, 3, 4, hit=1)
