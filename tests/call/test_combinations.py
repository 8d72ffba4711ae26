"""Every drafter with every builder that suits it, on random models: the text is the target's own,
whatever is drafted.
"""

import dataclasses
import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hybrid_toys import HYBRID, SIZES

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.resolve import resolve_config
from jaxspec.core.config import TargetConfig
from jaxspec.core.params import Params, Spec
from jaxspec.drafters import record_of, records
from jaxspec.drafters.dflash.network import BlockDrafterConfig
from jaxspec.drafters.dflash2.network import DFlash2Config
from jaxspec.drafters.dflash2.network import init_variables as init_dflash2
from jaxspec.drafters.dspark.shapes import init_variables, published_config
from jaxspec.round.plan import drafter_forwards, make_plan
from jaxspec.targets.transformer import Transformer
from training.drafters import named
from training.drafters import records as trained_records
from training.drafters.model_options import ModelOptions

# So few tokens that some drafts of random weights are right.
TARGET = TargetConfig(
    **SIZES, family="qwen3", vocab_size=16, tie_embeddings=True, max_positions=256
)
OPTIONS = ModelOptions(
    block_size=4,
    num_layers=1,
    feature_layers=(0, 1, 2),
    mask_token=3,
    depth=5,
    hidden_size=16,
    lstm_size=6,
)
KINDS = {one.name: dataclasses.replace(OPTIONS, kind=one.name) for one in trained_records()}
for _kind in ("draft_model", "griffin"):  # which choose no layers
    KINDS[_kind] = dataclasses.replace(KINDS[_kind], feature_layers=None)
CONFIGS = {kind: named(kind).config(options, TARGET, None) for kind, options in KINDS.items()}
# DSpark's heads and layouts of blocks.
_DSPARK = published_config(TARGET, (-1, 1), num_layers=1, block_size=4, markov_rank=6)
_SHARED = [field.name for field in dataclasses.fields(BlockDrafterConfig)]
DSPARK = {
    "dspark_vanilla": _DSPARK,
    "dspark_gated": dataclasses.replace(_DSPARK, markov_head="gated", draft_vocab_size=12),
    "dspark_rnn": dataclasses.replace(_DSPARK, markov_head="rnn", confidence_with_markov=False),
    "dspark_causal": dataclasses.replace(_DSPARK, causal=True, sample_from_anchor=False),
    "dspark_headless": dataclasses.replace(
        _DSPARK, markov_rank=0, confidence=False, confidence_with_markov=False
    ),
}
DFLASH2 = DFlash2Config(
    **{name: getattr(_DSPARK, name) for name in _SHARED},
    conv_group_size=4,
    conv_kernel_size=3,
    selector_rank=5,
    selector_top_k=7,
    output_multiplier=0.5,
    logit_softcap=20.0,
    embedding_scale=1.5,
)
CONFIGS |= DSPARK | {"dflash2": DFLASH2}
# Weights are drawn in turn; those of the drafters above decide which of their drafts are right.
CONFIGS["treeflash"] = CONFIGS.pop("treeflash")
SPEC = Spec(TARGET, tuple(CONFIGS.items()))
BUDGET, NEW, PROMPTS = 16, 14, [[4, 9, 2, 14, 4, 9], [7]]
ALL = [
    (name, builder)
    for name in [*CONFIGS, "prompt_lookup", "suffix"]
    for builder in record_of(SPEC.drafter(name)).builders
]
# A kind of drafter each that takes part in a step of its own kind; the rest takes minutes.
QUICK = [("eagle3", "static"), ("specblock", "best_first"), ("dspark_rnn", "dynamic")]


def draw_weights(generator, shapes, scale):
    return jax.tree.map(
        lambda leaf: (
            jnp.asarray(generator.normal(scale=scale, size=leaf.shape), jnp.float32)
            if jnp.issubdtype(leaf.dtype, jnp.floating)
            else jnp.arange(2, 2 + leaf.size, dtype=leaf.dtype)  # ids of a reduced vocabulary
        ),
        shapes,
    )


def draw_target(generator, config):
    tokens = jnp.zeros((1, 2), jnp.int32)
    shapes = jax.eval_shape(Transformer(config).init, jax.random.key(0), tokens, tokens)
    return draw_weights(generator, shapes, 1.2)


@pytest.fixture(scope="module")
def params():
    generator = np.random.default_rng(70)
    target = draw_target(generator, TARGET)
    head = jnp.zeros((TARGET.hidden_size, TARGET.vocab_size))

    def init(kind, config):
        if kind in DSPARK:
            return init_variables(config)
        return init_dflash2(config) if kind == "dflash2" else named(kind).init(config, 0, head)

    made = {
        kind: draw_weights(generator, jax.eval_shape(functools.partial(init, kind, config)), 0.4)
        for kind, config in CONFIGS.items()
    }
    return Params(target, made, SPEC)


@pytest.fixture(scope="module")
def hybrid(params):
    target = draw_target(np.random.default_rng(71), HYBRID)
    return params.replace(target=target, spec=dataclasses.replace(SPEC, target=HYBRID))


@pytest.fixture(scope="module")
def plain(params):
    return decode_plainly(params)


@pytest.fixture(scope="module")
def plain_hybrid(hybrid):
    return decode_plainly(hybrid)


def decode_plainly(params):
    """Texts by temperature, each decoded once."""
    known = {}

    def texts(temperature):
        if temperature not in known:
            outs = jaxspec.decode(
                params, PROMPTS, drafter="ar", max_new_tokens=NEW, temperature=temperature
            )
            known[temperature] = [out.tokens for out in outs]
            assert min(len(set(tokens)) for tokens in known[temperature]) > 6, (
                "the text must vary for drafts to matter"
            )
        return known[temperature]

    return texts


def drafted(params, method, builder, temperature=0.0, **more):
    options = dict(drafter=method, builder=builder, budget=BUDGET, temperature=temperature) | more
    return jaxspec.decode(params, PROMPTS, max_new_tokens=NEW, **group_options(**options))


def is_quick(name, builder, temperature):
    return (name, builder) in QUICK and temperature == 0


def cases(kept="specblock"):
    """All cases; of the quick ones, every run of the tests includes that of the drafter `kept`."""
    for name, builder in ALL:
        for temperature in (0.0, 1.0):
            one = (name, builder, temperature)
            mark = pytest.mark.thorough if is_quick(*one) else pytest.mark.slow
            yield pytest.param(*one, marks=() if is_quick(*one) and name == kept else mark)


def halved():
    """The cases at one temperature each, in turns.

    What changes a path's logits knows neither drafter nor builder nor the noise that is added.
    """
    for index, case in enumerate(cases(kept="dspark_rnn")):
        if index // 2 % 2 == index % 2 or is_quick(*case.values):
            yield case


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "builder"), [("specblock", "best_first"), ("falcon", "chain"), ("eagle3", "dynamic")]
)
@pytest.mark.parametrize("budget", [1, 2, 3])
def test_trees_smaller_than_a_step(params, plain, method, builder, budget):
    outs = jaxspec.decode(
        params,
        PROMPTS,
        max_new_tokens=NEW,
        drafter=method,
        speculation=jaxspec.Speculation(builder=builder),
        budget=budget,
    )
    assert [out.tokens for out in outs] == plain(0.0)
    assert {out.stats.drafted // out.stats.rounds for out in outs} == {budget - 1}


@pytest.mark.parametrize(("method", "builder", "temperature"), list(cases()))
def test_the_text_is_the_targets(params, plain, method, builder, temperature):
    outs = drafted(params, method, builder, temperature)
    assert [out.tokens for out in outs] == plain(temperature)
    assert builder == "chain" or sum(out.stats.rounds for out in outs) < len(PROMPTS) * (NEW - 1), (
        "no draft was accepted"
    )


@pytest.mark.slow
@pytest.mark.parametrize("temperature", [0.0, 1.0])
@pytest.mark.parametrize(("method", "builder"), ALL)
def test_the_text_of_recurrent_layers_is_the_targets(
    hybrid, plain_hybrid, method, builder, temperature
):
    outs = drafted(hybrid, method, builder, temperature)
    assert [out.tokens for out in outs] == plain_hybrid(temperature)
    if builder != "chain" and method != "suffix":  # nothing to copy: the text repeats nothing
        assert sum(out.stats.rounds for out in outs) < len(PROMPTS) * (NEW - 1), "nothing accepted"


# Of so few tokens, each comes several times on a path.
PENALISED = dict(presence_penalty=0.4, frequency_penalty=0.5, repetition_penalty=1.2, min_tokens=9)


@pytest.fixture(scope="module")
def penalised(params):
    """Texts with penalties and an end token that may not come yet, by options, each decoded once."""
    known = {}

    def texts(**options):
        key = tuple(options.items())
        if key not in known:
            call = dict(drafter="ar", max_new_tokens=NEW, stop=(5,)) | options | PENALISED
            known[key] = [
                out.tokens for out in jaxspec.decode(params, PROMPTS, **group_options(**call))
            ]
        return known[key]

    return texts


@pytest.mark.parametrize(("method", "builder", "temperature"), list(halved()))
def test_penalties_count_the_tokens_of_each_path(
    params, plain, penalised, method, builder, temperature
):
    outs = drafted(params, method, builder, temperature, stop=(5,), **PENALISED)
    assert [out.tokens for out in outs] == penalised(temperature=temperature)
    assert [out.tokens for out in outs] != plain(temperature)


@pytest.mark.slow
@pytest.mark.parametrize("acceptance", ["sequential", "rejection"])
@pytest.mark.parametrize(
    ("method", "builder"), [("draft_model", "chain"), ("eagle3", "static"), ("dspark_rnn", "chain")]
)
def test_other_rules_see_penalties_too(params, penalised, method, builder, acceptance):
    """Where filters leave one token, it is the same by all rules."""
    how = dict(temperature=1.0, top_k=1)
    outs = drafted(params, method, builder, acceptance=acceptance, stop=(5,), **how, **PENALISED)
    assert [out.tokens for out in outs] == penalised(**how)
    assert sum(out.stats.rounds for out in outs) < sum(len(out.tokens) - 1 for out in outs)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "builder", "temperature"),
    [case.values for case in halved() if case.values[1] != "lattice"],
)
def test_prompt_lookup_mixes_with_every_drafter(params, plain, method, builder, temperature):
    outs = drafted(params, method, builder, temperature, lookup=True)
    assert [out.tokens for out in outs] == plain(temperature)


def test_every_kind_of_drafter_is_listed():
    assert {record_of(SPEC.drafter(name)) for name, _ in ALL} == set(records())


def plan_of(method, builder, **options):
    speculation = jaxspec.Speculation(**{"builder": builder, "budget": BUDGET} | options)
    config, _ = resolve_config(SPEC, drafter=method, speculation=speculation)
    return make_plan(SPEC, config), config


def test_other_builders_are_refused_by_name():
    known = {builder for _, builder in ALL}
    refused = [
        (name, builder)
        for name in [*CONFIGS, "prompt_lookup", "suffix"]
        for builder in sorted(known)
        if (name, builder) not in ALL
    ]
    assert len(refused) > 20
    for name, builder in refused:
        with pytest.raises(
            ValueError, match=f"builder '{builder}' does not suit '{name}': choose one of chain"
        ):
            plan_of(name, builder)


@pytest.mark.parametrize(
    ("method", "options", "message"),
    [
        (
            "eagle3",
            dict(builder="expand"),
            "builder 'expand' does not suit 'eagle3': choose one of chain, dynamic, static",
        ),
        ("medusa", dict(builder="chain", depth=9), "depth is 9: 'medusa' drafts at most 4 tokens"),
        (
            "jetspec",
            dict(builder="chain", depth=3),
            "depth is for drafters that work in steps: give 'jetspec' a block_size",
        ),
        ("falcon", dict(builder="static/paths=[[0],[1,0]]"), r"path \[1, 0\] has no parent"),
        (
            "draft_model",
            dict(builder="oak"),
            "unknown builder 'oak': choose one of chain, best_first, expand",
        ),
    ],
)
def test_mistakes(method, options, message):
    with pytest.raises(ValueError, match=message):
        plan_of(method, **options)


@pytest.mark.parametrize(
    ("method", "builder", "depth", "forwards"),
    [
        ("jetspec", "expand", None, 1),
        ("medusa", "chain", None, 1),
        ("parallelspec", "dynamic", None, 1),
        ("eagle3", "dynamic", None, 5),
        ("eagle3", "chain", 3, 3),
        ("griffin", "dynamic", None, 5),
        ("draft_model", "chain", None, 5),
        ("dspark_rnn", "chain", None, 1),
        ("dspark_causal", "dynamic", 2, 1),
        ("specblock", "rank_guided", None, 2),
        ("specblock", "best_first", None, 1),
        ("falcon", "chain", None, 3),
        ("prompt_lookup", "chain", None, 0),
        ("suffix", "lattice", None, 0),
        ("treeflash", "lattice", None, 1),
    ],
)
def test_forwards_of_a_round(method, builder, depth, forwards):
    assert drafter_forwards(*plan_of(method, builder, depth=depth), SPEC) == forwards
