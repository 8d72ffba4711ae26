"""Every policy in the loop: the text is the autoregressive one, nothing compiles after the first
call, no host is called, and decisions arrive."""

import dataclasses
import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_models import shorten

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.prefill import prefill
from jaxspec.call.session import prepare, run_prefill
from jaxspec.core.state import Nodes, Pool
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.compose import compose
from jaxspec.policies.learned import (
    blockpilot,
    c2t,
    disco,
    ltd,
    ltd_features,
    regression,
    specdec_plus,
)
from jaxspec.policies.learned.networks import init_layers
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig, keep_state
from jaxspec.policies.rules import ddd, gammatune, svip
from jaxspec.policies.rules.random_actions import make_random
from jaxspec.policies.rules.static import make_static
from jaxspec.round.loop import run
from jaxspec.round.stop_rule import Sources, _drop_nodes, record_carried, select_sources

PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]
EAGLE = dict(drafter="eagle3", builder="dynamic/w3", budget=12, depth=4, max_new_tokens=24)
BLOCK = dict(drafter="dflash", builder="best_first", budget=12, max_new_tokens=24)
TABLE = make_costs((1, 4, 12), (0,), (1.0,), [[1.0], [1.1], [1.4]])
HIDDEN = 320


@pytest.fixture(scope="module")
def params():
    return jaxspec.load("mini", dtype="float32")


@pytest.fixture(scope="module")
def short_eagle(eagle):
    return shorten(eagle)


NAMES = ["best", "ltd", "static", "ddd", "svip", "gammatune", "disco", "specdec_plus", "c2t"]
NAMES += ["random", "regression", "blockpilot", "composed"]


def policies() -> dict:
    """(policy, options of the decode) of each by name; learned ones with their first weights."""
    key = jax.random.key(0)
    predictor = blockpilot.Predictor(blockpilot.init_blockpilot(key, 4096, 3, width=8))
    pilot = blockpilot.make_blockpilot((3, 5, 8), predictor)
    by_regression = regression.make_regression(TABLE, init_layers(key, (12, 3)))
    learned = ltd.LtdConfig((12,), width=3, steps=3, depths=(0, 1, 2), sizes=(2, 4, 12))
    deeper = init_layers(key, (ltd_features.depth_inputs(3), 16, 2))
    made = {
        "best": (make_bastion(TABLE), EAGLE),
        "ltd": (
            ltd.make_ltd(learned, deeper, init_layers(key, (learned.size_inputs(), 16, 3))),
            EAGLE,
        ),
        "static": (make_static(2, 7, (12,)), EAGLE),
        "ddd": (ddd.make_ddd(checks=(1, 2), threshold=-1.0, widths=(12,)), EAGLE),
        "svip": (svip.make_svip((12,), threshold=0.7), EAGLE),
        "gammatune": (gammatune.make_gammatune((12,), confidence=0.05), EAGLE),
        "disco": (disco.make_disco(disco.init_disco(key), (12,)), EAGLE),
        "specdec_plus": (
            specdec_plus.make_specdec_plus(specdec_plus.init_specdec_plus(key, HIDDEN, 16), (12,)),
            EAGLE,
        ),
        "c2t": (c2t.make_c2t(c2t.init_c2t(key), (12,)), EAGLE),
        "random": (make_random({0: 1, 3: 2}, {2: 1, 12: 3}), EAGLE),
        "regression": (by_regression, EAGLE),
        "blockpilot": (pilot, BLOCK),
        "composed": (compose(pilot, by_regression), BLOCK),
    }
    assert list(made) == NAMES
    return made


def cases() -> list:
    """Every policy greedily and sampled; by default one case of a policy of depth and rows.

    A case compiles for up to 20 seconds, so the others are slow tests.
    """
    default = {("ltd", 1.0)}
    return [
        pytest.param(name, t, marks=() if (name, t) in default else pytest.mark.slow)
        for name in NAMES
        for t in (0.0, 1.0)
    ]


@pytest.mark.parametrize(("name", "temperature"), cases())
def test_policies_change_no_text(request, name, temperature):
    policy, options = policies()[name]
    # A tiny EAGLE-3 serves all but the policies whose weights are of mini's sizes.
    tiny = options is EAGLE and name != "specdec_plus"
    params = request.getfixturevalue("short_eagle" if tiny else "params")
    options = options | {"temperature": temperature, "seed": 3}
    plain = jaxspec.decode(
        params, PROMPTS, drafter="ar", max_new_tokens=24, temperature=temperature, seed=3
    )
    outs = jaxspec.decode(params, PROMPTS, **group_options(policy=policy, **options))
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    for taken in (out.per_round for out in outs):
        if name == "static":
            assert set(taken.steps) == {2} and set(taken.rows) == {7}
        elif name == "random":
            assert set(taken.steps) <= {0, 3} and set(taken.rows) <= {
                2,
                4,
                12,
            }  # without a step there are three candidates
        elif name in ("blockpilot", "composed"):
            assert taken.block in (3, 5, 8) and max(taken.tokens) <= taken.block
    compiled = prefill._cache_size(), run._cache_size()
    again = jaxspec.decode(
        params,
        [prompt[::-1] for prompt in PROMPTS],
        **group_options(policy=outs[0].policy, **options),
    )
    assert (prefill._cache_size(), run._cache_size()) == compiled
    assert jax.tree.structure(again[0].policy) == jax.tree.structure(outs[0].policy)
    session = prepare(params, PROMPTS, **group_options(policy=policy, **options))
    lowered = run.lower(
        params, session.request, run_prefill(session), jnp.int32(4), config=session.config
    )
    assert not re.search("callback|infeed|outfeed", lowered.as_text())


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["svip", *(pytest.param(n, marks=pytest.mark.slow) for n in ("static", "c2t"))]
)
def test_policies_cut_lattices(params, name):
    """Policies that keep nodes, stop drafting and choose rows see the pool of a lattice tree."""
    policy, options = policies()[name]
    options = options | {"builder": "lattice", "trace": True}
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=24)
    cut = jaxspec.decode(params, PROMPTS, **group_options(policy=policy, **options))
    whole = jaxspec.decode(params, PROMPTS, **group_options(**options))
    assert [out.tokens for out in cut] == [out.tokens for out in whole]
    assert [out.tokens for out in cut] == [out.tokens for out in plain]
    trees = [one.rounds[0].tree for one in (cut[0], whole[0])]
    assert all((np.diff(tree.logprob) <= 0).all() for tree in trees)
    if name == "static":
        assert set(cut[0].per_round.steps) <= {1, 2} and set(cut[0].per_round.rows) == {7}
        shallow = trees[1].token[trees[1].depth <= 3]
        np.testing.assert_array_equal(trees[0].token, shallow[:7])
    else:
        assert min(cut[0].per_round.steps) < 3


@pytest.mark.slow
@pytest.mark.parametrize("name", ["specdec_plus", "c2t", "disco", "random"])
def test_the_smallest_trees(params, name):
    """Of one level, of which a row besides the root is verified, for a prompt of one token."""
    policy, options = policies()[name]
    out = jaxspec.decode(
        params, [117], **group_options(policy=policy, **options | {"depth": 1, "budget": 2})
    )
    plain = jaxspec.decode(params, [117], drafter="ar", max_new_tokens=24)
    assert (
        out.tokens == plain.tokens
        and set(out.per_round.steps) == {0}
        and set(out.per_round.rows) <= {1, 2}
    )


@dataclasses.dataclass(frozen=True)
class Picky(PolicyConfig):
    """Keeps a level's best node; counts levels by what it hands down, and stops where the count is
    wrong.
    """

    def functions(self):
        return _picky()


@functools.lru_cache
def _picky():
    def keep(controls, state, seen):
        return seen.frontier == jnp.max(seen.frontier, axis=1, keepdims=True)

    def carry(controls, state, seen):
        return seen.carried + 1

    def deeper(controls, state, seen):
        counted = jnp.where(seen.frontier > -jnp.inf, seen.carried, seen.steps) == seen.steps
        return counted.all(1) & (seen.steps < controls)

    return Functions(lambda shape: (), Acts(keep=keep, deeper=deeper, carry=carry), keep_state)


@pytest.mark.slow
def test_kept_nodes_alone_are_verified_and_numbers_are_handed_down(params):
    options = EAGLE | {"trace": True}
    outs = jaxspec.decode(
        params, PROMPTS, **group_options(policy=Policy(Picky((12,)), jnp.array([3, 2])), **options)
    )
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=24)
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    chains = jaxspec.decode(
        params, PROMPTS, **group_options(**options | {"builder": "chain", "budget": 5})
    )
    for out, chain, depth in zip(outs, chains, (4, 3), strict=True):
        assert {tuple(one.tree.depth.tolist()) for one in out.rounds} == {tuple(range(depth + 1))}
        np.testing.assert_array_equal(
            out.rounds[0].tree.token, chain.rounds[0].tree.token[: depth + 1]
        )


def test_a_level_without_the_nodes_that_were_dropped():
    """The second level's nodes 2 to 5, of which 5 and 3 may be drafted from and 3 is kept."""
    pool = Pool(
        *(np.array([x]) for x in ([5, 6, 7, 8, 9, 4], [-1, -1, 0, 0, 1, 1], [1, 1, 2, 2, 2, 2])),
        np.zeros((1, 6)),
    )
    nodes = Nodes(*[None] * 2, np.array([[2, 2]]), np.array([[5, 3]]), None)
    left = np.asarray(_drop_nodes(pool, nodes, np.array([[False, True]])).logprob)
    assert np.isfinite(left).tolist() == [[True, True, False, True, False, False]]
    with pytest.raises(ValueError, match="picks nodes of a level"):
        jaxspec.decode(
            jaxspec.load("mini", drafter="specblock"),
            [1, 2],
            speculation=jaxspec.Speculation(policy=Policy(Picky(), 1)),
            drafter="specblock",
        )


def test_numbers_of_nodes_are_those_of_their_slots():
    sources = record_carried(Sources(carried=jnp.zeros((1, 7))), jnp.array([[0.5, 0.25]]), 2, 3)
    assert sources.carried.tolist() == [[0, 0, 0, 0.5, 0.5, 0.25, 0.25]]
    assert select_sources(sources, jnp.array([[6, 0, 3]]))["carried"].tolist() == [[0.25, 0, 0.5]]
