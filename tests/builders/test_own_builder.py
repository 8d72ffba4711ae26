"""A builder that a test defines and registers builds trees for every drafter, by value and by name."""

from pathlib import Path

import own_builder
import pytest
from golden_data import SHIPPED
from own_builder import Comb
from short_models import shorten
from slow_cases import slow_except

import jaxspec
from jaxspec.bench.measure.methods import parse_methods
from jaxspec.builders import Proposes, parse_builder
from jaxspec.call.options import group_options

GOLDEN = SHIPPED / "jetspec"
PROMPTS, NEW = [[5, 9, 13, 2, 7, 40], [100, 3, 77]], 16


@pytest.fixture
def comb():
    jaxspec.builders.register("comb", Comb)
    yield
    jaxspec.builders.unregister("comb")


@pytest.fixture(scope="module")
def params():
    return shorten(
        jaxspec.load(GOLDEN / "target", drafter={"jetspec": GOLDEN / "drafter"}, dtype="float32")
    )


@pytest.mark.slow
@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_it_decodes_losslessly(params, comb, temperature):
    options = dict(max_new_tokens=NEW, temperature=temperature)
    plain = jaxspec.decode(params, PROMPTS, drafter="ar", **options)
    drafted = jaxspec.decode(
        params, PROMPTS, speculation=jaxspec.Speculation(builder=Comb(2)), budget=9, **options
    )
    assert [out.tokens for out in drafted] == [out.tokens for out in plain]
    assert {out.stats.drafted // out.stats.rounds for out in drafted} == {8}
    (method,) = parse_methods("jetspec-comb@9/w2", budget=32)[1:]
    named = jaxspec.decode(params, PROMPTS, **group_options(**options | method.options))
    assert [out.stats.accept_hist for out in named] == [out.stats.accept_hist for out in drafted]


def test_it_has_a_spelling(comb):
    assert str(Comb(3)) == "comb/w3" and parse_builder("comb/w3") == Comb(3)
    with pytest.raises(
        ValueError, match="builder 'comb' has no setting 'teeth': choose one of width"
    ):
        parse_builder("comb/teeth=3")


def test_it_grows_with_drafters_of_every_kind():
    for proposes in (
        Proposes(7, 7, 100, 9),
        Proposes(7, 1, 100, 9, steps=True),
        Proposes(7, 3, 100, 9, steps=True),
    ):
        growth = Comb(2).bind(proposes)
        assert (growth.rows, growth.longest) == (9, 4)
        assert growth.steps == (-(-4 // proposes.slots) - 1 if proposes.steps else 0)


def test_a_drafter_without_alternatives_is_refused(params):
    with pytest.raises(
        ValueError, match="'comb' does not suit 'prompt_lookup': choose one of chain"
    ):
        jaxspec.decode(
            params,
            PROMPTS,
            drafter="prompt_lookup",
            speculation=jaxspec.Speculation(builder=Comb()),
        )


def test_the_documentation_shows_it():
    """In under 25 lines of code."""
    code = Path(own_builder.__file__).read_text().split('"""\n\n', 1)[1]
    assert code in (Path(__file__).parents[2] / "docs" / "architecture.md").read_text()
    assert len([line for line in code.splitlines() if line.strip()]) < 25
