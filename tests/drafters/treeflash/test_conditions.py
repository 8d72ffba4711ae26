"""Tables of a round: what they hold, and what they change."""

import dataclasses
import functools

import numpy as np
import pytest
import serve_toys
from golden_data import SHIPPED
from treeflash_golden import load_treeflash, trees_at

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.core.sampling.settings import make_sampling
from jaxspec.drafters.prompt_lookup.mixture import mix_lookup
from jaxspec.drafters.registry import make_drafter
from jaxspec.round.plan import DecodeConfig, drafter_forwards, make_plan, suits_lookup
from jaxspec.serve import ServeRequest

ROOT = SHIPPED / "treeflash"
TARGET, DRAFT = ROOT / "target", ROOT / "draft"
CONTEXTS = [[140, 44, 95, 12, 181, 3], [20, 90, 30, 100, 7]]
SIZES = dict(children=6, rows=24, root=ROOT)


def load(**options):
    return jaxspec.load(TARGET, drafter=DRAFT, dtype="float32", **options)


def test_tables_of_all_tokens_change_no_tree(monkeypatch):
    """Level by level, every node is drafted from; so it is with tables of all tokens."""
    vocab = load_treeflash(root=ROOT).spec.target.vocab_size
    tables = trees_at("swiglu", CONTEXTS, conditions=vocab, **SIZES)
    monkeypatch.setattr("jaxspec.round.draft.uses_conditions", lambda round: False)
    levels = trees_at("swiglu", CONTEXTS, conditions=vocab, **SIZES)
    np.testing.assert_array_equal(tables.token, levels.token)
    np.testing.assert_array_equal(tables.parent, levels.parent)


def test_fewer_conditions_make_leaves():
    few, many = (trees_at("swiglu", CONTEXTS, conditions=m, **SIZES) for m in (1, 16))
    # With one condition a slot, one node of a depth at most has children.
    for token, parent, depth, size in zip(few.token, few.parent, few.depth, few.size, strict=True):
        for level in range(1, depth.max() + 1):
            parents = parent[:size][depth[:size] == level]
            assert len(set(token[parents].tolist())) <= 1
    assert (few.size <= many.size).all() and few.size.sum() < many.size.sum()


def plan_of(params, **options):
    sampling, _ = make_sampling()
    return make_plan(params.spec, DecodeConfig("treeflash", sampling, **options))


def test_what_knows_of_conditions():
    params = load_treeflash(root=ROOT)
    config = params.spec.drafter("treeflash")
    drafter = make_drafter(config)
    assert drafter.conditions.count == 16 and drafter.look_ahead is None
    assert mix_lookup(drafter).conditions is None
    assert make_drafter(dataclasses.replace(config, correction=False)).conditions is None
    assert not suits_lookup(params.spec, "treeflash")  # which would lose the tables
    plan = plan_of(params)
    assert plan.growth.candidates == 16 and plan.growth.steps == 6
    sampling, _ = make_sampling()
    assert drafter_forwards(plan, DecodeConfig("treeflash", sampling), params.spec) == 1
    assert plan_of(params, depth=3).drafter.depth == 7  # the block stays, the tree ends sooner
    assert plan_of(params, depth=9).drafter.depth == 9


@pytest.mark.thorough
def test_the_serving_engine():
    params = load()
    sampled = dict(temperature=0.8, seed=5, max_new_tokens=12)
    engine = serve_toys.make(params, capacity=128, max_logprobs=0)
    found = serve_toys.run(engine, *(ServeRequest(tuple(prompt), **sampled) for prompt in CONTEXTS))
    for prompt, (tokens, _, drafted, _) in zip(CONTEXTS, found, strict=True):
        plain = jaxspec.decode(params, prompt, **group_options(drafter="ar", **sampled))
        assert tokens == plain.tokens and any(drafted)


@pytest.mark.slow
def test_a_quantised_target():
    params = load(quantize="int8")
    options = dict(max_new_tokens=20, budget=16)
    plain = jaxspec.decode(params, CONTEXTS, drafter="ar", max_new_tokens=20)
    outs = jaxspec.decode(params, CONTEXTS, **group_options(drafter="treeflash", **options))
    assert [out.tokens for out in outs] == [out.tokens for out in plain]


@pytest.mark.slow
def test_rejection_sampling_draws_from_each_level():
    """Chains that are drawn have no tables; the text has the right length and ends."""
    params = load()
    options = dict(max_new_tokens=16, temperature=1.0, seed=4, acceptance="rejection")
    decode = functools.partial(jaxspec.decode, params, CONTEXTS)
    outs = decode(**group_options(drafter="treeflash", builder="chain", budget=6, **options))
    assert all(len(out.tokens) == 16 for out in outs)
