"""Decode calls that mix prompt lookup into what a drafter proposes."""

import dataclasses

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from short_models import load_short
from slow_cases import slow_except

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.call.resolve import resolve_config
from jaxspec.call.session import prepare
from jaxspec.drafters.dspark.shapes import published_config
from jaxspec.round.plan import make_plan, suits_lookup
from jaxspec.tuner.tuner import tune

pytestmark = pytest.mark.usefixtures("cache")

PROMPT = "Question: Repeat the words red green blue red green blue red green\nAnswer:"
PROMPTS = [PROMPT, "def add(a, b):"]


@pytest.mark.parametrize("temperature", slow_except([0.0], [0.0, 1.0]))
@pytest.mark.parametrize("method", slow_except(["dflash"], ["dflash", "eagle3"]))
def test_the_text_is_the_targets_own(mini, method, temperature):
    mini = mini if method == "dflash" else load_short(method)
    options = dict(max_new_tokens=48, temperature=temperature, seed=1)
    plain = jaxspec.decode(mini, PROMPTS, drafter="ar", **group_options(**options))
    alone, mixed = (
        jaxspec.decode(
            mini,
            PROMPTS,
            drafter=method,
            budget=4,
            speculation=jaxspec.Speculation(lookup=lookup),
            **group_options(**options),
        )
        for lookup in (False, True)
    )
    assert [out.tokens for out in mixed] == [out.tokens for out in plain]
    rounds = [sum(out.stats.rounds for out in outs) for outs in (alone, mixed)]
    assert rounds[1] != rounds[0] or temperature


def test_copies_help_a_drafter_that_knows_nothing(mini):
    """Its weights are noise, and the greedy text repeats itself."""
    noise = np.random.default_rng(0)
    variables = jax.tree.map(
        lambda leaf: jnp.asarray(noise.normal(0, 0.02, leaf.shape), leaf.dtype),
        mini.drafters["dflash"],
    )
    scrambled = mini.replace(drafters={"dflash": variables})
    alone, mixed = (
        jaxspec.decode(
            scrambled,
            PROMPTS,
            max_new_tokens=64,
            budget=4,
            speculation=jaxspec.Speculation(lookup=lookup),
        )[0].stats
        for lookup in (False, True)
    )
    assert alone.rounds > 60 and mixed.rounds < 50


def find_config(params, **options):
    """What a tuner makes of a call."""
    return tune(prepare(params, PROMPT, **group_options(**options)))[0].config


def test_calls_that_choose_by_cost_mix_it_in(mini):
    assert find_config(mini).lookup
    assert find_config(mini, speculation=jaxspec.Speculation(policy="auto"), budget=4).lookup
    assert not find_config(mini, speculation=jaxspec.Speculation(lookup=False)).lookup
    assert not prepare(mini, PROMPT, budget=4).config.lookup
    assert prepare(
        mini, PROMPT, budget=4, speculation=jaxspec.Speculation(lookup=True)
    ).config.lookup
    mixed = prepare(mini, PROMPT, budget=4, speculation=jaxspec.Speculation(lookup="suffix"))
    assert mixed.config.lookup == "suffix"
    for method in ("ar", "prompt_lookup", "suffix"):
        speculation = jaxspec.Speculation(lookup=True)
        assert not find_config(mini, drafter=method, speculation=speculation).lookup
    with pytest.raises(TypeError, match="lookup is 'yes': give True, False or 'suffix'"):
        prepare(mini, PROMPT, speculation=jaxspec.Speculation(lookup="yes"))


def test_a_drafter_that_looks_ahead_keeps_its_lattice(mini):
    """Unless the call asks for a mixture, whose other trees it then builds."""
    config = published_config(mini.spec.target, (-1, 1), num_layers=1, block_size=4, markov_rank=6)
    spec = dataclasses.replace(mini.spec, drafters=(("dspark", config), *mini.spec.drafters))
    assert not suits_lookup(spec, "dspark") and suits_lookup(spec, "dflash")
    for builder, lookup in (("lattice", False), ("dynamic", True)):
        made, _ = resolve_config(
            spec, drafter="dspark", speculation=jaxspec.Speculation(builder=builder, lookup=lookup)
        )
        assert (make_plan(spec, made).drafter.look_ahead is None) == lookup
