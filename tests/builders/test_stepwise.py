"""Trees that grow in steps, against plain Python, with a drafter whose proposals depend on the
whole path.
"""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.builders import (
    Proposes,
    StepCandidates,
    Unsuitable,
    best_first,
    chain,
    dynamic,
    rank_guided,
    static,
)
from jaxspec.builders.trees.static import build_static
from jaxspec.core.state import Candidates
from jaxspec.core.tree import keep_rows, validate

VOCAB, ROOT = 12, 5


def proposes(slots: int, depth: int, budget: int) -> Proposes:
    return Proposes(depth, slots, VOCAB, budget, steps=True)


@functools.cache
def proposal(path: tuple[int, ...], slots: int) -> np.ndarray:
    """Log-probabilities [slots, V] after `path`, the same every time."""
    logits = (
        np.random.default_rng([8, *path]).normal(scale=1.0, size=(slots, VOCAB)).astype(np.float32)
    )
    return np.asarray(jax.nn.log_softmax(logits))


def offers(paths, slots: int, count: int) -> StepCandidates:
    logprob = np.stack([proposal(path, slots) for path in paths])
    token = np.argsort(-logprob, axis=-1, kind="stable")[..., :count]
    return StepCandidates(jnp.asarray(token), jnp.asarray(np.take_along_axis(logprob, token, -1)))


def grown(growth, depth_limit: int):
    """The tree, and the paths drafted from in each step."""
    begin, grow = jax.jit(growth.init), jax.jit(growth.grow)
    pool, nodes = begin(offers([()], growth.slots, growth.candidates), jnp.int32(depth_limit))
    drafted, computed = [], [((), slot) for slot in range(growth.slots)]
    for step in range(growth.steps):
        paths = [path_of(pool, int(node)) for node in nodes.node]
        for path, source, live in zip(paths, nodes.source, nodes.live, strict=True):
            base, slot = computed[int(source)]
            assert not live or (path[: len(base)] == base and len(path) == len(base) + slot + 1), (
                "proposed by another slot"
            )
        computed += [(path, slot) for path in paths for slot in range(growth.slots)]
        drafted.append([path for path, live in zip(paths, nodes.live, strict=True) if live])
        offered = offers(paths, growth.slots, growth.candidates)
        pool, nodes = grow(pool, nodes, offered, jnp.int32(step), jnp.int32(depth_limit))
    tree = growth.finish(pool, jnp.int32(ROOT))
    tree = jax.tree.map(lambda x: x[None], tree)
    validate(tree)
    return tree, drafted


def path_of(pool, node: int) -> tuple[int, ...]:
    path = []
    while node >= 0:
        path.append(int(pool.token[node]))
        node = int(pool.parent[node])
    return tuple(reversed(path))


def paths_of(tree) -> dict[tuple[int, ...], float]:
    """{path: log-probability} of the rows in use, but the root."""
    found = [()]
    for row in range(1, int(tree.size[0])):
        found.append((*found[int(tree.parent[0, row])], int(tree.token[0, row])))
        assert int(tree.depth[0, row]) == len(found[-1])
    return dict(zip(found[1:], np.asarray(tree.logprob[0, 1 : len(found)]), strict=True))


def eagle(width: int, depth: int, rows: int) -> dict[tuple[int, ...], float]:
    """EAGLE-2's tree in plain Python: expand the best `width` nodes of every level, keep the best
    of all candidates.
    """
    pool, level = {}, {(): 0.0}
    for _ in range(depth):
        below = {}
        for path, score in level.items():
            logprob = proposal(path, 1)[0]
            for token in np.argsort(-logprob, kind="stable")[:width]:
                below[*path, int(token)] = score + float(logprob[token])
        pool |= below
        level = dict(sorted(below.items(), key=lambda item: -item[1])[:width])
    return dict(sorted(pool.items(), key=lambda item: -item[1])[: rows - 1])


@pytest.mark.parametrize(
    ("width", "depth", "rows"), [(3, 4, 12), pytest.param(4, 3, 40, marks=pytest.mark.slow)]
)
def test_the_dynamic_tree_is_eagles(width, depth, rows):
    growth = dynamic(width).bind(proposes(1, depth, rows))
    tree, drafted = grown(growth, depth)
    expected = eagle(width, depth, rows)
    found = paths_of(tree)
    assert set(found) == set(expected)
    np.testing.assert_allclose(
        [found[path] for path in expected], list(expected.values()), atol=1e-5
    )
    assert [len(level) for level in drafted] == [width] * (depth - 1)
    # Or a source that ignored the parent would pass: the nodes drafted from must not all have one.
    assert all(len({path[:-1] for path in level}) > 1 for level in drafted[1:])


def test_depth_and_rows_are_run_time_numbers():
    """One compilation of the caps serves every smaller depth and size."""
    growth = dynamic(3).bind(proposes(1, 4, 12))
    for depth in (0, 1, 2, 3):
        tree, drafted = grown(growth, depth)
        assert set(paths_of(tree)) == set(eagle(3, depth, 12))
        assert [bool(level) for level in drafted] == [step + 1 < depth for step in range(3)]
    whole = paths_of(grown(growth, 4)[0])
    for rows in (1, 5, 12, 99):
        small = jax.jit(keep_rows)(grown(growth, 4)[0], jnp.array([rows]))
        validate(small)
        assert list(paths_of(small)) == list(whole)[: rows - 1]


@pytest.mark.parametrize(
    ("slots", "depth", "expected_steps"), [pytest.param(1, 4, 3, marks=pytest.mark.slow), (3, 5, 1)]
)
def test_a_chain_follows_the_best_tokens(slots, depth, expected_steps):
    growth = chain().bind(proposes(slots, depth, depth + 1))
    assert growth.steps == expected_steps and growth.rows == depth + 1
    path = ()
    while len(path) < depth:
        path += tuple(int(token) for token in proposal(path, slots).argmax(-1))
    tree, _ = grown(growth, depth)
    assert list(paths_of(tree)) == [path[: i + 1] for i in range(depth)]
    tree, _ = grown(growth, depth - 1)
    assert len(paths_of(tree)) == depth - 1


PATHS = ((0,), (1,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 2), (1, 0, 0), (0, 0, 2, 1))


def ranks(path: tuple[int, ...], slots: int) -> tuple[int, ...]:
    """Tokens of a rank path: the proposal that a node takes its rank in is that of the last
    ancestor drafted from.
    """
    tokens = ()
    for depth, rank in enumerate(path):
        block = depth - depth % slots
        order = np.argsort(-proposal(tokens[:block], slots)[depth % slots], kind="stable")
        tokens += (int(order[rank]),)
    return tokens


@pytest.mark.parametrize(
    "slots", [pytest.param(1, marks=pytest.mark.slow), 2, pytest.param(3, marks=pytest.mark.slow)]
)
def test_a_static_tree_takes_its_ranks_where_they_were_proposed(slots):
    growth = static(PATHS).bind(proposes(slots, 4, 1))
    tree, drafted = grown(growth, 4)
    assert set(paths_of(tree)) == {ranks(path, slots) for path in PATHS}
    parents = {path[: len(path) - 1 - (len(path) - 1) % slots] for path in PATHS}
    assert {path for level in drafted for path in level} == {
        ranks(path, slots) for path in parents if path
    }
    assert set(paths_of(grown(growth, 2)[0])) == {
        ranks(path, slots) for path in PATHS if len(path) <= 2
    }


@pytest.mark.thorough
def test_with_proposals_of_a_depth_the_static_tree_is_the_flat_one():
    token = np.stack([np.argsort(-proposal((d,), 1)[0], kind="stable")[:4] for d in range(4)])
    logprob = np.stack([np.take(proposal((d,), 1)[0], token[d]) for d in range(4)])
    flat = build_static(
        jnp.asarray(token),
        jnp.asarray(logprob),
        jnp.int32(ROOT),
        jnp.int32(4),
        rows=1 + len(PATHS),
        paths=PATHS,
    )
    growth = static(PATHS).bind(proposes(4, 4, 1))
    pool, _ = growth.init(
        StepCandidates(jnp.asarray(token[None]), jnp.asarray(logprob[None])), jnp.int32(4)
    )
    steps = growth.finish(pool, jnp.int32(ROOT))
    for name in ("token", "parent", "depth", "ancestors", "size"):
        np.testing.assert_array_equal(getattr(flat, name), getattr(steps, name), name)
    np.testing.assert_allclose(flat.logprob, steps.logprob, atol=1e-5)


def test_a_budget_of_one_row_is_the_root():
    for builder in (chain(), dynamic()):
        assert builder.bind(proposes(1, 4, 1)).rows == 1


def test_a_dynamic_tree_of_one_proposal_takes_no_draft_step():
    """Its levels follow from candidates that are the same under every node of a depth."""
    growth = dynamic(3).bind(Proposes(4, 4, VOCAB, 12))
    assert (growth.rows, growth.steps, growth.nodes, growth.slots) == (12, 0, 0, 4)
    token = np.stack([np.argsort(-proposal((d,), 1)[0], kind="stable")[:3] for d in range(4)])
    logprob = np.stack([np.take(proposal((d,), 1)[0], token[d]) for d in range(4)])
    tree = jax.jit(growth.build)(
        Candidates(token[None], logprob[None]), jnp.array([ROOT]), jnp.array([4])
    )
    validate(tree)
    assert int(tree.size[0]) == 12
    paths = list(itertools.product(range(3), repeat=2))
    second = sorted(paths, key=lambda path: -sum(logprob[d, r] for d, r in enumerate(path)))[:3]
    best = {tuple(int(token[d, r]) for d, r in enumerate(path)) for path in second}
    assert {path[:2] for path in paths_of(tree) if len(path) > 2} <= best


@pytest.mark.parametrize(
    ("builder", "sizes", "error", "message"),
    [
        (dynamic(), proposes(4, 4, 8), Unsuitable, "needs a drafter of one token at a time"),
        (best_first(), proposes(1, 4, 8), Unsuitable, "that proposes several tokens at once"),
        (
            dynamic(),
            Proposes(4, 4, VOCAB, 8, retrieved=True),
            Unsuitable,
            "needs a drafter that proposes alternatives",
        ),
        (rank_guided(), proposes(1, 4, 8), Unsuitable, "needs a drafter with a rank head"),
        (dynamic(), proposes(1, 4, 0), ValueError, "budget is 0"),
        (dynamic(13), proposes(1, 4, 8), ValueError, "width is 13: give at most 12"),
        (static(PATHS), proposes(1, 3, 8), ValueError, "paths are up to 4 deep"),
    ],
)
def test_refusals(builder, sizes, error, message):
    with pytest.raises(error, match=message) as raised:
        builder.bind(sizes)
    assert "\n" not in str(raised.value)
