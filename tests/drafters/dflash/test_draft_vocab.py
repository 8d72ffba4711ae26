"""Drafters that can draft some of the target's tokens only: the text stays the target's own,
whatever they leave out.
"""

import dataclasses
import functools
import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from golden_data import SHIPPED

import jaxspec
from jaxspec.builders import expand
from jaxspec.call.options import group_options
from jaxspec.core.cache import filled
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.drafters.base import Committed, TargetHead
from jaxspec.drafters.dflash.drafter import make_block_drafter
from jaxspec.drafters.dflash.network import BlockDrafter, BlockDrafterConfig
from jaxspec.targets.transformer import Transformer

GOLDEN = SHIPPED / "dflash"
PROMPTS = [[7, 12, 22, 14, 20, 19], [9, 8, 7]]
# Fewer tokens than most budgets have rows.
COUNT = 6
TREES = ("chain", "best_first", "expand", "beam")
SIZES = dict(hidden_size=16, num_layers=1, num_heads=2, num_kv_heads=1, head_dim=8, ffn_size=16)


def toy():
    target = TargetConfig(**SIZES, vocab_size=40, tie_embeddings=True, max_positions=64)
    config = BlockDrafterConfig(
        **SIZES,
        block_size=4,
        mask_token_id=39,
        feature_layers=(0,),
        target_hidden_size=16,
        vocab_size=40,
    )

    def touch(drafter, features, block, positions):
        keys, values = drafter.context_kv(features, positions)
        return drafter(block, positions, filled((keys,), (values,), jnp.ones(1, jnp.int32)))

    block, positions = jnp.zeros((1, 2, 16)), jnp.zeros((1, 2), jnp.int32)
    variables = jax.jit(Transformer(target).init)(jax.random.key(0), positions, positions)
    # The usual small weights make every token alike.
    variables["params"]["embedding"] *= 20
    drafter = jax.jit(
        lambda key: BlockDrafter(config).init(key, block, block, positions, method=touch)
    )(jax.random.key(1))
    return Params(variables, {"dflash": drafter}, Spec(target, (("dflash", config),)))


@pytest.fixture(scope="module", params=["toy", pytest.param("golden", marks=pytest.mark.slow)])
def whole(request):
    if request.param == "toy":
        return toy()
    return jaxspec.load(GOLDEN / "target", drafter=GOLDEN / "drafter", dtype="float32")


@pytest.fixture(scope="module")
def texts(whole):
    """The target's own continuations at a temperature."""
    return functools.cache(
        lambda temperature: [
            out.tokens
            for out in jaxspec.decode(
                whole, PROMPTS, drafter="ar", **group_options(**sampling(temperature))
            )
        ]
    )


@pytest.fixture(scope="module")
def params(whole, texts):
    """Restricted to some tokens of those texts, so that drafts are accepted, and so that tokens
    occur that are not drafted.
    """
    tokens, counts = np.unique(np.concatenate(texts(0.7)), return_counts=True)
    return reduced(whole, np.sort(tokens[np.argsort(-counts, kind="stable")[:COUNT]]))


def reduced(whole, ids):
    """The bundle with its drafter restricted to `ids`, whose output projection is those columns of
    the target's.
    """
    ((name, config),) = whole.spec.drafters
    weights = whole.target["params"]
    head = (weights["embedding"].T if whole.spec.target.tie_embeddings else weights["lm_head"])[
        :, ids
    ]
    variables = whole.drafters[name] | {
        "draft": {"lm_head": head, "ids": jnp.asarray(ids, jnp.int32)}
    }
    return with_config(whole, dataclasses.replace(config, draft_vocab_size=len(ids)), variables)


def with_config(bundle, config, variables):
    return bundle.replace(
        drafters={"dflash": variables},
        spec=dataclasses.replace(bundle.spec, drafters=(("dflash", config),)),
    )


def sampling(temperature):
    return dict(temperature=temperature, max_new_tokens=24)


def ids_of(params):
    return np.asarray(params.drafters["dflash"]["draft"]["ids"])


SLOW = functools.partial(pytest.param, marks=pytest.mark.slow)


@pytest.mark.parametrize(
    ("builder", "temperature"),
    [
        ("best_first", 0.7),
        *(
            SLOW(*case)
            for case in itertools.product(TREES, (0.0, 0.7))
            if case != ("best_first", 0.7)
        ),
    ],
)
@pytest.mark.thorough
def test_text_is_the_targets_own(params, texts, builder, temperature):
    outs = jaxspec.decode(
        params,
        PROMPTS,
        **group_options(builder=builder, **sampling(temperature)),
        budget=12,
        trace=True,
    )
    assert [out.tokens for out in outs] == texts(temperature)
    rounds = [r for out in outs for r in out.rounds]
    assert all(np.isin(r.tree.token[1:], ids_of(params)).all() for r in rounds)
    # No candidate lacks: chains are as deep as the block, trees as large as the budget.
    block = params.spec.drafter("dflash").block_size
    assert {len(r.tree.token) for r in rounds} == {block if builder == "chain" else 12}
    assert temperature == 0 or builder == "chain" or max(len(r.path) for r in rounds) > 1


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["sequential", "rejection"])
def test_other_acceptance_rules_draw_tokens_that_cannot_be_drafted(params, acceptance):
    outs = jaxspec.decode(
        params,
        PROMPTS,
        **group_options(builder="chain", acceptance=acceptance, **sampling(1.0)),
        budget=4,
    )
    tokens = np.concatenate([out.tokens for out in outs])
    assert len(tokens) == 48 and not np.isin(tokens, ids_of(params)).all()


@pytest.mark.slow
def test_one_token_is_a_draft_vocabulary(whole, texts):
    only = reduced(whole, np.array([texts(0.0)[0][1]]))
    assert [
        out.tokens
        for out in jaxspec.decode(only, PROMPTS, budget=64, **group_options(**sampling(0.0)))
    ] == texts(0.0)


def test_logits_are_the_targets_columns(whole, params):
    logits = []
    for bundle in (whole, params):
        ((name, config),) = bundle.spec.drafters
        drafter = make_block_drafter(config)

        @jax.jit
        def expand(bundle, name=name, config=config, drafter=drafter):
            features = jnp.ones((1, 3, len(config.feature_layers) * config.target_hidden_size))
            model = Transformer(bundle.spec.target).bind(bundle.target)
            target, token = TargetHead(model.embed, model.logits), jnp.zeros((1, 3), jnp.int32)
            new = Committed(token, token, features, jnp.array([0]), jnp.array([3]))
            state = drafter.absorb(
                bundle.drafters[name], drafter.init(1, 8, jnp.float32), target, new
            )
            return drafter.start(bundle.drafters[name], state, target, jnp.array([7]), 3)[0].logits[
                :, 0
            ]

        logits.append(expand(bundle))
    ids, vocab = ids_of(params), whole.spec.target.vocab_size
    np.testing.assert_allclose(logits[1][..., ids], logits[0][..., ids], atol=1e-5)
    assert np.isneginf(logits[1][..., np.setdiff1d(np.arange(vocab), ids)]).all()
    assert logits[0].shape == logits[1].shape == (1, 3, vocab)


def test_width_beyond_the_draft_vocabulary_is_refused(params):
    size = len(ids_of(params))
    with pytest.raises(
        ValueError,
        match=f"width is {size + 1}: give at most {size}, the drafter's vocabulary",
    ):
        jaxspec.decode(params, PROMPTS, **group_options(builder=expand(size + 1), **sampling(0.0)))


@pytest.mark.parametrize("causal", [False, True])
def test_save_and_load_again(params, tmp_path, causal):
    """In the speculators schema, or for a causal head, which that has no field for, in the native
    layout.
    """
    config = dataclasses.replace(params.spec.drafter("dflash"), causal=causal)
    params = with_config(params, config, params.drafters["dflash"])
    jaxspec.save(params, tmp_path)
    again = jaxspec.load(tmp_path)
    assert again.spec.drafters == params.spec.drafters
    jax.tree.map(np.testing.assert_array_equal, again.drafters, params.drafters)
    assert again.drafters["dflash"]["draft"]["ids"].dtype == jnp.int32
