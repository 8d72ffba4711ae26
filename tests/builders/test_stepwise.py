"""Trees that grow in steps, against plain Python, with a drafter whose proposals depend on the
whole path.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from jaxspec.builders import make_stepper, static
from jaxspec.builders.stepwise import Offers, finish
from jaxspec.core.tree import keep_rows, validate

VOCAB, ROOT = 12, 5


@functools.cache
def proposal(path: tuple[int, ...], slots: int) -> np.ndarray:
    """Log-probabilities [slots, V] after `path`, the same every time."""
    logits = (
        np.random.default_rng([8, *path]).normal(scale=1.0, size=(slots, VOCAB)).astype(np.float32)
    )
    return np.asarray(jax.nn.log_softmax(logits))


def offers(paths, slots: int, count: int) -> Offers:
    logprob = np.stack([proposal(path, slots) for path in paths])
    token = np.argsort(-logprob, axis=-1, kind="stable")[..., :count]
    return Offers(jnp.asarray(token), jnp.asarray(np.take_along_axis(logprob, token, -1)))


def grown(stepper, depth_limit: int):
    """The tree, and the paths drafted from in each step."""
    begin, grow = jax.jit(stepper.begin), jax.jit(stepper.grow)
    pool, nodes = begin(offers([()], stepper.slots, stepper.candidates), jnp.int32(depth_limit))
    drafted, computed = [], [((), slot) for slot in range(stepper.slots)]
    for step in range(stepper.steps):
        paths = [path_of(pool, int(node)) for node in nodes.node]
        for path, source, live in zip(paths, nodes.source, nodes.live, strict=True):
            base, slot = computed[int(source)]
            assert not live or (path[: len(base)] == base and len(path) == len(base) + slot + 1), (
                "proposed by another slot"
            )
        computed += [(path, slot) for path in paths for slot in range(stepper.slots)]
        drafted.append([path for path, live in zip(paths, nodes.live, strict=True) if live])
        offered = offers(paths, stepper.slots, stepper.candidates)
        pool, nodes = grow(pool, nodes, offered, jnp.int32(step), jnp.int32(depth_limit))
    tree = finish(pool, jnp.int32(ROOT), stepper.rows, stepper.longest)
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
    stepper = make_stepper(
        "dynamic", slots=1, depth=depth, vocab_size=VOCAB, budget=rows, tree_width=width
    )
    tree, drafted = grown(stepper, depth)
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
    stepper = make_stepper("dynamic", slots=1, depth=4, vocab_size=VOCAB, budget=12, tree_width=3)
    for depth in (0, 1, 2, 3):
        tree, drafted = grown(stepper, depth)
        assert set(paths_of(tree)) == set(eagle(3, depth, 12))
        assert [bool(level) for level in drafted] == [step + 1 < depth for step in range(3)]
    whole = paths_of(grown(stepper, 4)[0])
    for rows in (1, 5, 12, 99):
        small = jax.jit(keep_rows)(grown(stepper, 4)[0], jnp.array([rows]))
        validate(small)
        assert list(paths_of(small)) == list(whole)[: rows - 1]


@pytest.mark.parametrize(
    ("slots", "depth", "expected_steps"), [pytest.param(1, 4, 3, marks=pytest.mark.slow), (3, 5, 1)]
)
def test_a_chain_follows_the_best_tokens(slots, depth, expected_steps):
    stepper = make_stepper("chain", slots=slots, depth=depth, vocab_size=VOCAB, budget=depth + 1)
    assert stepper.steps == expected_steps and stepper.rows == depth + 1
    path = ()
    while len(path) < depth:
        path += tuple(int(token) for token in proposal(path, slots).argmax(-1))
    tree, _ = grown(stepper, depth)
    assert list(paths_of(tree)) == [path[: i + 1] for i in range(depth)]
    tree, _ = grown(stepper, depth - 1)
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
    stepper = make_stepper("static", slots=slots, depth=4, vocab_size=VOCAB, budget=1, paths=PATHS)
    tree, drafted = grown(stepper, 4)
    assert set(paths_of(tree)) == {ranks(path, slots) for path in PATHS}
    parents = {path[: len(path) - 1 - (len(path) - 1) % slots] for path in PATHS}
    assert {path for level in drafted for path in level} == {
        ranks(path, slots) for path in parents if path
    }
    assert set(paths_of(grown(stepper, 2)[0])) == {
        ranks(path, slots) for path in PATHS if len(path) <= 2
    }


def test_with_proposals_of_a_depth_the_static_tree_is_the_flat_one():
    token = np.stack([np.argsort(-proposal((d,), 1)[0], kind="stable")[:4] for d in range(4)])
    logprob = np.stack([np.take(proposal((d,), 1)[0], token[d]) for d in range(4)])
    flat = static(
        jnp.asarray(token),
        jnp.asarray(logprob),
        jnp.int32(ROOT),
        jnp.int32(4),
        rows=1 + len(PATHS),
        paths=PATHS,
    )
    stepper = make_stepper("static", slots=4, depth=4, vocab_size=VOCAB, budget=1, paths=PATHS)
    pool, _ = stepper.begin(
        Offers(jnp.asarray(token[None]), jnp.asarray(logprob[None])), jnp.int32(4)
    )
    steps = finish(pool, jnp.int32(ROOT), stepper.rows, 4)
    for name in ("token", "parent", "depth", "ancestors", "size"):
        np.testing.assert_array_equal(getattr(flat, name), getattr(steps, name), name)
    np.testing.assert_allclose(flat.logprob, steps.logprob, atol=1e-5)


def test_a_budget_of_one_row_is_the_root():
    for name in ("chain", "dynamic"):
        assert make_stepper(name, slots=1, depth=4, vocab_size=VOCAB, budget=1).rows == 1


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"name": "dynamic", "slots": 4}, "is for drafters of a token at a time"),
        ({"name": "dynamic", "budget": 0}, "budget is 0"),
        ({"name": "dynamic", "tree_width": 13}, "between 1 and the vocabulary size 12"),
        ({"name": "chain", "paths": PATHS}, "paths are a tree of builder 'static'"),
        ({"name": "static"}, "builder 'static' needs paths"),
        ({"name": "static", "paths": PATHS, "depth": 3}, "paths are up to 4 deep"),
        ({"name": "rank_guided"}, "needs a drafter with a rank head"),
        ({"name": "chain", "classes": "slim"}, "fanout is for builders 'expand' and 'rank_guided'"),
    ],
)
def test_refusals(options, message):
    with pytest.raises(ValueError, match=message):
        make_stepper(**({"slots": 1, "depth": 4, "vocab_size": VOCAB, "budget": 8} | options))
