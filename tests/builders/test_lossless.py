"""Every builder and score drafts in the loop, and changes no token."""

from pathlib import Path

import pytest

import jaxspec

GOLDEN = Path(__file__).parent.parent / "golden" / "jetspec"
PROMPTS = [[5, 9, 13, 2, 7, 40], [100, 3, 77]]
PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]
OPTIONS = [
    dict(builder="static", paths=PATHS),
    dict(builder="beam", budget=12),
    dict(builder="best_first", budget=12, score="entropy"),
    dict(builder="expand", budget=12, score="hybrid", entropy_weight=0.3),
]


@pytest.fixture(scope="module")
def params():
    return jaxspec.load(GOLDEN / "target", drafter={"jetspec": GOLDEN / "drafter"}, dtype="float32")


@pytest.fixture(scope="module")
def plain(params):
    def decode(temperature):
        return [out.tokens for out in jaxspec.decode(params, PROMPTS, method="ar", max_new_tokens=16, temperature=temperature)]

    return {temperature: decode(temperature) for temperature in (0.0, 1.0)}


@pytest.mark.parametrize("options", OPTIONS, ids=lambda options: "-".join(map(str, list(options.values())[::2])))
def test_greedy_text_is_the_targets(params, plain, options):
    drafted = jaxspec.decode(params, PROMPTS, max_new_tokens=16, **options)
    assert [out.tokens for out in drafted] == plain[0.0]
    assert all(out.stats.drafted > out.stats.rounds for out in drafted)


def test_sampled_text_is_the_targets(params, plain):
    drafted = jaxspec.decode(params, PROMPTS, max_new_tokens=16, temperature=1.0, **OPTIONS[0])
    assert [out.tokens for out in drafted] == plain[1.0]


def test_entropies_go_with_every_acceptance_rule(params):
    """The drawn candidates of `rejection` come with the entropies of the distributions that they were drawn from."""
    out = jaxspec.decode(
        params, PROMPTS[0], max_new_tokens=8, temperature=1.0, acceptance="rejection", builder="beam", budget=8, score="entropy"
    )
    assert len(out.tokens) == 8


def test_rejection_needs_siblings_of_consecutive_ranks(params):
    options = dict(builder="static", paths=[[0], [0, 1]], max_new_tokens=4, temperature=1.0)
    with pytest.raises(ValueError, match="acceptance 'rejection' needs siblings of ranks 0, 1, ...: a node in paths skips one"):
        jaxspec.decode(params, PROMPTS[0], acceptance="rejection", **options)
