"""Policies decide alike at every temperature and score temperature, given the drafter's logits.

The old form read the tree's own scores. It is what `Observation.built` holds, and decides otherwise.
"""

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from lattice_toy import BLOCK_TABLE, TABLE, begin_round

import jaxspec
from jaxspec.builders import parse_builder
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.compose import compose
from jaxspec.policies.learned import c2t, disco, ltd, regression, specdec_plus
from jaxspec.policies.protocol import (
    OF_STEPS,
    TOP,
    Acts,
    Functions,
    Policy,
    PolicyConfig,
    RoundShape,
    keep_state,
)
from jaxspec.policies.rules import ddd, dspark, gammatune, svip
from jaxspec.round.draft import draft
from jaxspec.round.grow import grow, show_tree
from jaxspec.round.loop import choose_size

# Temperature, score temperature, and the strength of the noise of coupled drafts.
SETTINGS = [(0.0, 1.0, 0.0), (0.0, 0.4, 0.0), (0.7, 1.0, 0.0), (0.7, 0.4, 0.0)]
SETTINGS += [(1.0, 1.0, 0.5), (1.0, 0.4, 0.5)]
TABLE_OF_TIMES = make_costs((1, 2, 3, 4, 5), (0,), (1.0,), [[1.0], [1.3], [1.6], [1.9], [2.2]])
SHAPE = RoundShape(1, 5, 4, 3, 3, 3)


@pytest.fixture(scope="module", autouse=True)
def tables():
    for record in (TABLE, BLOCK_TABLE):
        jaxspec.drafters.register(record)
    yield
    for record in (TABLE, BLOCK_TABLE):
        jaxspec.drafters.unregister(record.name)


@dataclasses.dataclass(frozen=True)
class Watcher(PolicyConfig):
    """Takes every step and shows what it saw."""

    sink: Any = None
    needs: frozenset[str] = OF_STEPS

    def functions(self):
        return _watch(self)


@functools.lru_cache
def _watch(config):
    def tell(seen):
        jax.experimental.io_callback(config.sink, None, seen, ordered=True)
        return jnp.ones_like(seen.live)

    acts = Acts(
        deeper=lambda controls, state, seen: tell(seen),
        rows=lambda controls, state, seen: 9 * tell(seen),
    )
    return Functions(lambda shape: (), acts, keep_state, config.needs)


@functools.partial(jax.jit, static_argnames=("config", "temperature", "score", "builder", "block"))
def play(base, bias, noise, *, config, temperature, score, builder, block):
    given = {"builder": parse_builder(builder), "budget": 5, "score_temperature": score}
    root = jnp.zeros(1, jnp.int32)
    settings = given | {"policy": config, "block": block}
    round, state = begin_round(base, bias, root, temperature, **settings)
    drafted = draft(round, state, noise)
    tree = grow(round, state, drafted)
    return choose_size(round, state, drafted, tree, show_tree(round.growth, drafted, tree))


def observations(base, bias, builder, block=False) -> list[list]:
    """What a policy sees in a round of each setting, step by step, then the whole tree."""
    found, depth = [], base.shape[1]
    for temperature, score, strength in SETTINGS:
        seen = []
        config = Watcher(sink=seen.append, needs=frozenset() if block else OF_STEPS)
        how = {"temperature": temperature, "score": score, "builder": builder, "block": block}
        # This noise changes scores, and no ranks.
        noise = None if temperature == 0 else strength * base
        jax.block_until_ready(play(base, bias, noise, config=config, **how))
        jax.effects_barrier()
        # Nothing is drafted after the deepest level, which is asked about too.
        found.append([one for one in seen if one.tree is not None or one.steps < depth - 1])
    return found


@pytest.fixture(scope="module")
def levels():
    """Distributions of the depth alone: trees have the same nodes at every setting."""
    base = np.random.default_rng(3).normal(scale=1.5, size=(1, 4, TOP)).astype(np.float32)
    return observations(base, np.zeros((TOP, TOP), np.float32), "dynamic/w3")


@pytest.fixture(scope="module")
def chains():
    base = np.random.default_rng(5).normal(scale=1.5, size=(1, 4, TOP)).astype(np.float32)
    return observations(base, np.zeros((TOP, TOP), np.float32), "chain", block=True)


@pytest.fixture(scope="module")
def pairs():
    """Which of a level's two nodes is the best depends on the scale: with conditional probabilities
    of 0.55 * 0.6 and 0.45 * 0.9, the other one is if the logits are divided by 0.4.
    """
    bias = np.full((TOP, TOP), np.log(np.float32(1e-6)))
    bias[:2, :2] = np.log(np.float32([[0.6, 0.4], [0.1, 0.9]]))
    base = np.zeros((1, 3, TOP), np.float32)
    base[0, 0, :2] = np.log(np.float32([0.55, 0.45])) - bias[0, :2]
    return observations(base, bias, "dynamic/w2")


def decide(policy: Policy, seen, built: bool) -> list:
    """The decisions about what was seen, in order; `built`: in the old form."""
    functions, answers = policy.config.functions(), []
    state = functions.init(SHAPE)
    for one in seen:
        one = (one.built or one) if built else one
        carried = None if one.frontier is None else jnp.zeros_like(one.frontier)
        one = one.replace(carried=carried)
        for name in ("rows",) if one.tree is not None else ("keep", "deeper"):
            act = getattr(functions.act, name)
            if act is not None:
                answers.append(np.asarray(act(policy.controls, state, one)).tolist())
    return answers


def layer(inputs: int, outputs: int, weights: dict, bias) -> list:
    """A network of one layer with weights {(input, output): weight}, 0 elsewhere."""
    kernel = np.zeros((inputs, outputs), np.float32)
    for place, weight in weights.items():
        kernel[place] = weight
    return [{"kernel": kernel, "bias": np.array(bias, np.float32)}]


POOL = ltd.LtdConfig((5,), width=3, steps=3, depths=(0, 1, 2), sizes=(2, 3, 5))
ROWS = ltd.LtdConfig((1, 5), sizes=(2, 3, 5), sees="tree")
# It goes on above a log-probability of -1.5; rows depend on the first candidate of the second step.
POOL_NETWORKS = (
    layer(POOL.depth_inputs(), 2, {(0, 1): 1}, [0, 1.5]),
    layer(POOL.size_inputs(), 3, {(12, 1): 1}, [0, 1.5, -9]),
)
ROWS_NETWORK = layer(ROWS.size_inputs(), 3, {(2, 2): 1}, [-9, 0, 1.5])
# Accepted as expected by the probabilities of the paths.
EXPECTED = layer(5, 5, {(i, n): 1 for n in range(5) for i in range(n)}, [1] * 5)
# Nodes after the first token are accepted with probability 0.98, after the second with 0.04.
HEAD = {
    "hidden": layer(TOP, 1, {}, [0])[0],
    "shortcut": layer(TOP, 1, {(0, 0): 4}, [6])[0],
    "out": layer(1, 1, {(0, 0): 1}, [0])[0],
}
STEPPED = {
    "ddd": ddd.make_ddd(checks=(0, 1, 2), threshold=-1.0),
    "c2t": c2t.make_c2t(layer(3, 1, {(0, 0): 10}, [-2])),
    "c2t-ltd": c2t.make_c2t(layer(2, 1, {(0, 0): 1}, [1.5]), reads="ltd"),
    "ltd": ltd.make_ltd(POOL, *POOL_NETWORKS),
}
BEST_NODE = {
    "svip": svip.make_svip(threshold=0.27),
    "gammatune-plus": gammatune.make_gammatune(confidence=0.75),
    "disco": disco.make_disco(layer(12, 1, {(0, 0): 10}, [-7.5])),
    "specdec_plus": specdec_plus.make_specdec_plus(HEAD),
}
BASTION = make_bastion(TABLE_OF_TIMES, "bastion-paper")
SIZED = {
    "ltd": ltd.make_ltd(ROWS, size=ROWS_NETWORK),
    "regression": regression.make_regression(TABLE_OF_TIMES, EXPECTED),
    "dspark-threshold": dspark.make_dspark_threshold(0.45),
    "dspark": dspark.make_dspark(TABLE_OF_TIMES),
    "bastion-paper": BASTION,
    "composed": compose(ddd.make_ddd(), BASTION),
}


@pytest.mark.parametrize(
    ("played", "name"),
    [("levels", x) for x in STEPPED] + [("pairs", x) for x in BEST_NODE]
    + [("chains", x) for x in SIZED],
)  # fmt: skip
def test_decisions_are_those_of_every_setting(request, played, name):
    seen = request.getfixturevalue(played)
    policy = {"levels": STEPPED, "pairs": BEST_NODE, "chains": SIZED}[played][name]
    first, *others = (decide(policy, one, built=False) for one in seen)
    assert first and all(other == first for other in others)
    old = [decide(policy, one, built=True) for one in seen]
    assert any(other != first for other in old), "this case cannot tell the forms apart"


def test_part_without_a_scale_sees_the_tree(chains):
    """`best` corrects the tree's own scores, also beside a policy that reads the plain ones."""
    best = make_bastion(TABLE_OF_TIMES)
    both = compose(ddd.make_ddd(), best)
    assert both.config.score_scale == 1.0 and best.config.score_scale is None
    for one in chains:
        functions = both.config.functions()
        answer = functions.act.rows(both.controls, functions.init(SHAPE), one[-1])
        assert [int(answer)] == decide(best, one, built=True)
    other = dataclasses.replace(ddd.make_ddd().config, score_scale=0.25)
    with pytest.raises(ValueError, match=r"at the scales 0.25 and 1.0: compose policies of one"):
        compose(BASTION, Policy(other, ddd.make_ddd().controls))
