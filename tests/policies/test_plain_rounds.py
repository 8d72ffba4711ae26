"""Rounds of plain decoding under a policy: the drafter knows afterwards what it would have
known.
"""

import dataclasses
import functools

import jax.numpy as jnp
import pytest
from golden_data import SHIPPED
from short_models import shorten

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.policies.protocol import Acts, Functions, Policy, PolicyConfig
from jaxspec.round.plan import QUEUE

GOLDEN = SHIPPED / "dflash"
PROMPT = [117, 142, 122, 64, 240, 19]
TOKENS = 24
OPTIONS = {"drafter": "dflash", "builder": "best_first", "budget": 12}


@dataclasses.dataclass(frozen=True)
class LateConfig(PolicyConfig):
    """A policy that drafts after so many rounds of a call, its controls."""

    def functions(self):
        return _functions()


@functools.lru_cache
def _functions():
    return Functions(
        lambda shape: jnp.int32(0),
        Acts(draft=lambda first, rounds, seen: rounds >= first),
        lambda first, rounds, outcome: rounds + 1,
        resume=jnp.zeros_like,
    )


def load():
    return jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"})


@pytest.fixture(scope="module")
def params():
    return shorten(load())


def decode(params, prompt, policy, tokens: int):
    return jaxspec.decode(
        params, prompt, **group_options(policy=policy, **OPTIONS), max_new_tokens=tokens
    )


def late(first: int) -> Policy:
    return Policy(LateConfig(), jnp.int32(first))


@pytest.mark.parametrize(
    "plain",
    [
        pytest.param(QUEUE - 2, marks=pytest.mark.slow),
        QUEUE,
        pytest.param(QUEUE + 9, marks=pytest.mark.slow),
    ],
)
@pytest.mark.thorough
def test_drafting_goes_on_as_if_all_rounds_had_drafted(params, plain):
    # So late in its text, the shortened model accepts nothing.
    params = load() if plain > QUEUE else params
    out = decode(params, PROMPT, late(plain), plain + TOKENS)
    assert (
        out.per_round.tokens[:plain].tolist() == [1] * plain
        and out.per_round.rows[:plain].tolist() == [1] * plain
    )
    always = decode(params, PROMPT + out.tokens[:plain], late(0), TOKENS)
    assert always.tokens == out.tokens[plain:]
    assert always.per_round.tokens.tolist() == out.per_round.tokens[plain:].tolist()
    assert always.per_round.tokens.max() > 1, "nothing was accepted: this would show nothing"


@pytest.mark.thorough
def test_a_policy_hears_that_a_call_begins(params):
    out = decode(params, PROMPT, late(4), 8)
    again = decode(params, PROMPT, out.policy, 8)
    assert again.per_round.rows.tolist() == out.per_round.rows.tolist() and out.per_round.rows[
        :5
    ].tolist() == [1] * 4 + [12]
