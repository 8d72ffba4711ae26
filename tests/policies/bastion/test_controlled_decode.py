"""A policy changes how many rows are verified, never the text."""

import pytest
from golden_data import SHIPPED
from short_models import shorten

import jaxspec
from jaxspec.call.options import group_options
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.bastion.controller import make_bastion

WIDTHS = (1, 12)


GOLDEN = SHIPPED / "dflash"


@pytest.fixture(scope="module")
def params():
    return shorten(jaxspec.load(GOLDEN / "target", drafter={"dflash": GOLDEN / "drafter"}))


def table(draft: float, verify) -> object:
    return make_costs(WIDTHS, (0, 512), (draft, draft), [[x, 2 * x] for x in verify])


CHEAP = table(0.0, (1.0, 0.5))
DEAR = table(50.0, (1.0, 90.0))
OPTIONS = {"drafter": "dflash", "builder": "best_first", "budget": 12, "max_new_tokens": 24}
PROMPTS = [[117, 142, 122, 64, 240, 19], [40, 41, 42, 43]]


def decode(params, policy, **options):
    return jaxspec.decode(params, PROMPTS, **group_options(policy=policy, **OPTIONS | options))


@pytest.mark.slow
def test_the_text_is_the_autoregressive_one_whatever_is_chosen(params):
    plain = [out.tokens for out in jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=24)]
    always, seldom = decode(params, make_bastion(CHEAP)), decode(params, make_bastion(DEAR))
    assert [out.tokens for out in always] == [out.tokens for out in seldom] == plain
    assert always[0].stats.rounds < seldom[0].stats.rounds
    state = always[0].policy.state
    assert int(state.sizes.sum()) == int(state.rounds) == max(out.stats.rounds for out in always)
    assert int(state.sizes[0]) == 0 and int(seldom[0].policy.state.sizes[0]) > 10
    # What was learned goes on in the next call, and a policy may be used again.
    again = decode(params, seldom[0].policy)
    assert int(again[0].policy.state.rounds) > int(seldom[0].policy.state.rounds)
    assert int(again[0].policy.state.drafted) - int(seldom[0].policy.state.drafted) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("method", ["dflash", "prompt_lookup"])
def test_sampled_text_is_the_autoregressive_one(params, method):
    options = {"temperature": 1.0, "seed": 3}
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", max_new_tokens=24, **options)
    outs = decode(params, make_bastion(CHEAP), drafter=method, builder=None, **options)
    assert [out.tokens for out in outs] == [out.tokens for out in plain]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"budget": 32}, "budget is 32, and the policy's times reach 12 rows"),
        ({"builder": "best_first+entropy"}, "leave the score out"),
        ({"acceptance": "rejection", "temperature": 1.0}, "leave the policy out"),
    ],
)
def test_refusals(params, options, message):
    with pytest.raises(ValueError, match=message):
        decode(params, make_bastion(CHEAP), **options)
