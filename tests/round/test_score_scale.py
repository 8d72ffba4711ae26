"""Policies read one scale: scores at it follow the tree that the call built by its own scores."""

import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lattice_toy import BLOCK_TABLE, TABLE, begin_round, paths_of
from short_models import load_short
from slow_cases import mark_thorough, slow_except

import jaxspec
from jaxspec.builders import parse_builder
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare, run_prefill
from jaxspec.policies.rules.static import StaticConfig
from jaxspec.round.context import Round, make_round
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow, show_tree
from jaxspec.round.stop_rule import show_pool

BATCH, DEPTH, VOCAB = 2, 4, 6
SCALE = 2.0


@pytest.fixture(scope="module", autouse=True)
def tables():
    for record in (TABLE, BLOCK_TABLE):
        jaxspec.drafters.register(record)
    yield
    for record in (TABLE, BLOCK_TABLE):
        jaxspec.drafters.unregister(record.name)


@functools.partial(jax.jit, static_argnames=("builder", "block", "policy"))
def score_trees(base, bias, root, noise, *, builder, block, policy):
    """(tree, its rows' scores, pool, its nodes' scores) of a sampled round under noise."""
    settings = {"builder": builder, "budget": 9, "score_temperature": 0.4, "policy": policy}
    round, state = begin_round(base, bias, root, 0.7, block=block, **settings)
    drafted = draft(round, state, noise)
    tree, pool = grow(round, state, drafted), drafted.pool
    shown = None if pool is None else show_pool(pool, drafted.scores).logprob
    return tree, show_tree(round.growth, drafted, tree).logprob, pool, shown


def paths_in(pool, sequence):
    """(index, path) of the nodes of a pool."""
    for index in np.flatnonzero(np.asarray(pool.logprob[sequence]) > -np.inf):
        path, node = [], int(index)
        while node >= 0:
            path.append(int(pool.token[sequence, node]))
            node = int(pool.parent[sequence, node])
        yield int(index), path[::-1]


CASES = [("dynamic/w3", False), ("lattice", False), ("lattice/shortlist=3", False)]
CASES += [("chain", False), ("static/paths=[[0],[1],[0,0],[0,1],[0,0,0],[1,0]]", False)]
CASES += [("best_first", True), ("expand/w2", True), ("beam/w2", True), ("chain", True)]
CASES += [("dynamic/w2", True), ("static/paths=[[0],[1],[0,0],[0,1],[0,0,0],[1,0]]", True)]


@pytest.mark.parametrize(("builder", "block"), mark_thorough([("lattice", False)], CASES))
def test_nodes_are_scored_by_the_plain_softmax_of_their_paths(builder, block):
    """Against path sums of log-softmax(logits / 2) in float64; the tree's own are others."""
    rng = np.random.default_rng(7)
    base = rng.normal(scale=2.0, size=(BATCH, DEPTH, VOCAB)).astype(np.float32)
    bias = (0 if block else 1) * rng.normal(size=(VOCAB, VOCAB)).astype(np.float32)
    noise, root = rng.gumbel(size=base.shape).astype(np.float32), np.array([1, 4])
    policy = StaticConfig(depth=False, score_scale=SCALE)
    tree, rows, pool, nodes = score_trees(
        base, bias, root, noise, builder=parse_builder(builder), block=block, policy=policy
    )
    assert (pool is None) == block
    for b in range(BATCH):

        def plain(path, b=b):
            before = (int(root[b]), *path)
            steps = zip(itertools.count(), before, path, strict=False)
            logits = [(base[b, d] + bias[last], token) for d, last, token in steps]
            whole = [(x.astype(np.float64) / SCALE, token) for x, token in logits]
            return sum(x[token] - np.log(np.exp(x).sum()) for x, token in whole)

        expected = [0.0, *map(plain, paths_of(tree, b))]
        size = int(tree.size[b])
        assert size > 4
        np.testing.assert_allclose(rows[b, :size], expected, atol=2e-5)
        assert (rows[b, size:] == -np.inf).all()
        assert np.abs(np.asarray(tree.logprob[b, :size]) - expected).max() > 0.1
        if pool is not None:
            for index, path in paths_in(pool, b):
                np.testing.assert_allclose(nodes[b, index], plain(path), atol=2e-5)


@pytest.mark.parametrize(
    "drafter", slow_except(["specblock"], ["specblock", "falcon", "parallelspec", "medusa"])
)
def test_scores_follow_every_drafters_trees(monkeypatch, drafter):
    """At the scale of the tree itself, greedily, they are the tree's own: blocks of several slots
    that branch and merge included.
    """
    monkeypatch.setattr(Round, "score_scale", 1.0)
    params = load_short(drafter)
    options = {"budget": 24, "policy": jaxspec.policies.make_static(rows=9), "max_new_tokens": 8}
    given = group_options(drafter=drafter, score_temperature=1.0, **options)
    session = prepare(params, [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]], **given)

    @jax.jit
    def look(params, request, state):
        round = make_round(params, request, session.config)
        drafted = draft(round, state, None)
        tree = grow(round, state, drafted)
        return tree, show_tree(round.growth, drafted, tree).logprob

    tree, rows = look(params, session.request, run_prefill(session))
    assert (tree.size > 4).all()
    np.testing.assert_allclose(rows, tree.logprob, atol=2e-5)
    assert jnp.isfinite(rows).sum() == tree.size.sum()
