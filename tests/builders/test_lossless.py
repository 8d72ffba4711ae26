"""Every builder and score drafts in the loop, and changes no token."""

import pytest
from golden_data import SHIPPED
from short_models import shorten

import jaxspec
from jaxspec.builders import static
from jaxspec.call.options import group_options

GOLDEN = SHIPPED / "jetspec"
PROMPTS = [[5, 9, 13, 2, 7, 40], [100, 3, 77]]
PATHS = [[0], [1], [0, 0], [0, 1], [1, 0], [0, 0, 0], [0, 0, 1], [0, 0, 0, 0]]
DRAFTS = [
    pytest.param(dict(builder=static(PATHS)), marks=pytest.mark.slow),
    dict(builder="beam+entropy", budget=12),
    pytest.param(dict(builder="best_first+entropy", budget=12), marks=pytest.mark.slow),
    pytest.param(
        dict(builder="expand+hybrid0.3", budget=12),
        marks=pytest.mark.slow,
    ),
    pytest.param(dict(builder="expand/fanout=entropy_gate", budget=12), marks=pytest.mark.slow),
]


@pytest.fixture(scope="module")
def params():
    return shorten(
        jaxspec.load(GOLDEN / "target", drafter={"jetspec": GOLDEN / "drafter"}, dtype="float32")
    )


@pytest.fixture(scope="module")
def decode(params):
    def tokens(**options):
        outs = jaxspec.decode(params, PROMPTS, max_new_tokens=16, **group_options(**options))
        return [out.tokens for out in outs], [
            out.stats.drafted / max(out.stats.rounds, 1) for out in outs
        ]

    return tokens


@pytest.fixture(scope="module")
def plain(decode):
    return decode(drafter="ar")[0]


@pytest.mark.parametrize("options", DRAFTS, ids=lambda options: str(options["builder"]))
def test_greedy_text_is_the_targets(decode, plain, options):
    tokens, drafted = decode(**options)
    assert tokens == plain
    assert drafted == [11 if "budget" in options else len(PATHS)] * 2 or "fanout" in str(
        options["builder"]
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    "options",
    [dict(builder=static(PATHS)), dict(builder="best_first+hybrid", budget=12)],
)
def test_sampled_text_is_the_targets(decode, options):
    assert decode(temperature=1.0, **options)[0] == decode(temperature=1.0, drafter="ar")[0]


@pytest.mark.slow
def test_entropies_go_with_drawn_candidates(decode):
    """Those of `rejection` come with the entropies of the distributions that they were drawn
    from.
    """
    tokens, _ = decode(temperature=1.0, acceptance="rejection", builder="beam+entropy", budget=8)
    assert list(map(len, tokens)) == [16, 16]


def test_rejection_needs_siblings_of_consecutive_ranks(params):
    options = dict(builder=static([[0], [0, 1]]), max_new_tokens=4, temperature=1.0)
    with pytest.raises(
        ValueError,
        match="acceptance 'rejection' needs siblings of ranks 0, 1, ...: a node in paths skips one",
    ):
        jaxspec.decode(params, PROMPTS[0], **group_options(acceptance="rejection", **options))
