"""BASTION's rules on DFlash and EAGLE-3: the text stays, and published rules score raw paths."""

import dataclasses
import itertools

import numpy as np
import pytest
from golden_data import SHIPPED
from short_models import shorten

import jaxspec
from jaxspec.call.options import Speculation, group_options
from jaxspec.call.resolve import resolve_config
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion
from jaxspec.policies.bastion.size_rules import RELEASED_LEAST, SIZE_RULES
from jaxspec.policies.compose import compose
from jaxspec.policies.rules.static import make_static

GOLDEN = SHIPPED / "dflash"
PROMPTS, ROWS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]], 36
TABLE = make_costs((1, ROWS), (0,), 0.5, [[1.0], [1.05]])
DRAFTERS = {
    "dflash": {"drafter": "dflash", "builder": "best_first"},
    "eagle3": {"drafter": "eagle3", "builder": "dynamic/w6", "depth": 4},
    "lattice": {"drafter": "eagle3", "builder": "lattice", "depth": 4},
}


@pytest.fixture(scope="module")
def models(eagle):
    dflash = shorten(jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"}))
    return {"dflash": dflash, "eagle3": eagle}


BY_DEFAULT = {("bastion-paper", "dflash", 1.0)}


def cases() -> list:
    """Every rule on both drafters, greedily and sampled; most of them as slow tests."""
    return [
        pytest.param(*case, marks=() if case in BY_DEFAULT else pytest.mark.slow)
        for case in itertools.product(SIZE_RULES, DRAFTERS, (0.0, 1.0))
    ]


@pytest.mark.slow
@pytest.mark.parametrize(("rule", "drafter", "temperature"), cases())
def test_the_text_is_the_autoregressive_one(models, rule, drafter, temperature):
    params = models[DRAFTERS[drafter]["drafter"]]
    options = {"temperature": temperature, "seed": 3, "max_new_tokens": 16}
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", **group_options(**options))
    options |= {"budget": ROWS, **DRAFTERS[drafter]}
    outs = jaxspec.decode(
        params, PROMPTS, **group_options(policy=make_bastion(TABLE, rule, pauses=False), **options)
    )
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    state = outs[0].policy.state
    sizes = np.flatnonzero(state.sizes)
    assert int(state.drafted) == int(state.rounds) and sizes.max() > 1
    if rule == "bastion-code":
        assert all(size <= RELEASED_LEAST for size in sizes)


def test_published_rules_score_raw_paths(models):
    spec = models["dflash"].spec

    def scale(policy, **options):
        speculation = Speculation(policy=policy, **options)
        return resolve_config(spec, speculation=speculation)[0].score_temperature

    paper, *others = (make_bastion(TABLE, rule) for rule in SIZE_RULES if rule != "best")
    assert {scale(paper), *map(scale, others)} == {1.0} and not paper.config.corrected
    assert scale(paper, score_temperature=0.5) == 0.5
    assert scale(make_bastion(TABLE)) is None
    assert scale(compose(make_static(steps=2), paper)) == 1.0
    named = jaxspec.policies.make_named("bastion-paper", lambda: TABLE)
    assert scale(named) == 1.0 and named.config == paper.config


@pytest.mark.slow
def test_raw_scores_are_the_drafters_probabilities(models):
    """A published rule gives the paths of a drafter that asks for sharper scores no such scores."""
    params = models["dflash"]
    own = dataclasses.replace(params.spec.drafter("dflash"), score_temperature=(0.25, 0.25))
    sharp = params.replace(spec=dataclasses.replace(params.spec, drafters=(("dflash", own),)))
    table = make_costs((1, 4), (0,), 0.0, [[1.0], [1.0]])
    options = {"drafter": "dflash", "budget": 4, "max_new_tokens": 4, "trace": True}
    policy = make_bastion(table, "bastion-paper")
    given = (
        jaxspec.decode(sharp, PROMPTS[0], **group_options(policy=policy, **options)).rounds[0].tree
    )
    raw = jaxspec.decode(params, PROMPTS[0], **group_options(**options)).rounds[0].tree
    assert len(given.logprob) == len(raw.logprob) == 4
    np.testing.assert_allclose(given.logprob, raw.logprob, rtol=1e-5)
    np.testing.assert_array_equal(given.token, raw.token)
