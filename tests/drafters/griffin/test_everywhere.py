"""GRIFFIN under policies, in the serving engine, and for a quantised target: texts stay the target's."""

import pytest
import serve_toys
from golden_data import SHIPPED

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies import make_named
from jaxspec.serve import ServeRequest

TARGET, DRAFT = SHIPPED / "griffin" / "target", SHIPPED / "griffin" / "draft"
PROMPTS = [[89, 74, 8, 113, 67, 190], [20, 90, 30, 100]]
TREE = dict(builder="dynamic/w4", budget=16, depth=4)


def load(**options):
    return jaxspec.load(TARGET, drafter=DRAFT, dtype="float32", **options)


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(
    "policy", ["best", "bastion-paper", "ddd-paper", "svip-paper", "gammatune-paper"]
)
def test_policies(policy, temperature):
    params = load()
    table = make_costs((1, 16), (0,), 0.5, [[1.0], [1.05]])
    options = dict(max_new_tokens=20, temperature=temperature, seed=3)
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", **group_options(**options))
    options |= dict(drafter="griffin", policy=make_named(policy, lambda: table), **TREE)
    outs = jaxspec.decode(params, PROMPTS, **group_options(**options))
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert sum(out.stats.rounds for out in outs) < sum(len(out.tokens) - 1 for out in outs)


@pytest.mark.thorough
def test_the_serving_engine():
    params = load()
    sampled = dict(temperature=0.8, seed=5, max_new_tokens=12)
    engine = serve_toys.make(params, capacity=128, max_logprobs=0)
    requests = [ServeRequest(tuple(prompt), **sampled) for prompt in PROMPTS]
    found = serve_toys.run(engine, *requests)
    for prompt, (tokens, _, drafted, _) in zip(PROMPTS, found, strict=True):
        plain = jaxspec.decode(params, prompt, **group_options(drafter="ar", **sampled))
        assert tokens == plain.tokens and any(drafted)


@pytest.mark.slow
def test_a_quantised_target():
    params = load(quantize="int8")
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=20)
    outs = jaxspec.decode(params, PROMPTS, max_new_tokens=20, **group_options(**TREE))
    assert [out.tokens for out in outs] == [out.tokens for out in plain]
    assert sum(out.stats.rounds for out in outs) < 30
