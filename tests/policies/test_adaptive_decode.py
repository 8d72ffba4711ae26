"""Adaptive rules in the loop: the text is the autoregressive one, nothing compiles after the first call, decisions arrive."""

import jax
import pytest

import jaxspec
from jaxspec.loop import prefill, run
from jaxspec.policies import blockpilot, c2t, ddd, disco, expected_acceptance, gammatune, specdec_plus, svip
from jaxspec.policies.compose import compose
from jaxspec.policies.heads import init_layers
from jaxspec.policies.latency import make_table
from jaxspec.policies.random_size import make_random
from jaxspec.policies.static_size import make_static

PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]
EAGLE = dict(method="eagle3", budget=12, depth=4, tree_width=3, max_new_tokens=24)
BLOCK = dict(method="dflash", builder="best_first", budget=12, max_new_tokens=24)
TABLE = make_table((1, 4, 12), (0,), (1.0,), [[1.0], [1.1], [1.4]])
HIDDEN = 320


@pytest.fixture(scope="module")
def params():
    return jaxspec.load("mini", dtype="float32")


def policies() -> dict:
    """(policy, options of the decode) of each by name; learned ones with their first weights."""
    key = jax.random.key(0)
    predictor = blockpilot.Predictor(blockpilot.init_layers_of(key, 4096, 3, width=8))
    pilot = blockpilot.make_blockpilot((3, 5, 8), predictor)
    regression = expected_acceptance.make_regression(TABLE, init_layers(key, (12, 3)))
    return {
        "static": (make_static(2, 7), EAGLE),
        "ddd": (ddd.make_ddd(checks=(1, 2), threshold=-1.0), EAGLE),
        "svip": (svip.make_svip(threshold=0.7), EAGLE),
        "gammatune": (gammatune.make_gammatune(confidence=0.05), EAGLE),
        "disco": (disco.make_disco(disco.init_weights(key)), EAGLE),
        "specdec_plus": (specdec_plus.make_specdec_plus(specdec_plus.init_weights(key, HIDDEN, 16), threshold=0.6), EAGLE),
        "c2t": (c2t.make_c2t(c2t.init_weights(key)), EAGLE),
        "random": (make_random({0: 1, 3: 2}, {2: 1, 12: 3}), EAGLE),
        "regression": (regression, EAGLE),
        "blockpilot": (pilot, BLOCK),
        "composed": (compose(pilot, regression), BLOCK),
    }


FAST = ("gammatune",)


@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(name, marks=() if name in FAST else pytest.mark.slow) for name in policies()])
def test_policies_change_no_text(params, name, temperature):
    policy, options = policies()[name]
    options = options | {"temperature": temperature, "seed": 3}
    plain = jaxspec.decode(params, PROMPTS, method="ar", max_new_tokens=24, temperature=temperature, seed=3)
    outs = jaxspec.decode(params, PROMPTS, policy=policy, **options)
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    compiled = prefill._cache_size(), run._cache_size()
    again = jaxspec.decode(params, [prompt[::-1] for prompt in PROMPTS], policy=outs[0].policy, **options)
    assert (prefill._cache_size(), run._cache_size()) == compiled
    assert jax.tree.structure(again[0].policy) == jax.tree.structure(outs[0].policy)
