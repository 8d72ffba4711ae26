"""The automatic policy: lossless, probed once, kept on disk and per process."""

from __future__ import annotations

import jax
import numpy as np
import pytest
from slow_cases import slow_except

import jaxspec
from jaxspec.call.hooks import UNTUNED
from jaxspec.call.options import group_options
from jaxspec.call.session import prepare
from jaxspec.call.start import start_session
from jaxspec.costs.round_costs import make_costs
from jaxspec.policies.rules.static import make_static
from jaxspec.round.plan import make_plan
from jaxspec.tuner import automatic, probe, store
from jaxspec.tuner.timed_rounds import PLAIN
from jaxspec.tuner.tuner import process_tuner, tune

PROMPTS = ["def add(a, b):\n    return", "Question: What is 2 + 3?\nAnswer:"]


pytestmark = pytest.mark.usefixtures("cache")


def prepare_tuned(params, prompt, **options):
    """A session with the choices of this process's tuner."""
    return tune(prepare(params, prompt, **group_options(**options)))[0]


@pytest.mark.parametrize("temperature", slow_except([1.0], [0.0, 1.0]))
def test_the_text_is_the_targets_own(mini, cache, temperature):
    options = dict(temperature=temperature, seed=3, max_new_tokens=40)
    plain = jaxspec.decode(mini, PROMPTS, drafter="ar", **group_options(**options))
    first = jaxspec.decode(mini, PROMPTS, **group_options(policy="auto", **options))
    again = jaxspec.decode(mini, PROMPTS, **group_options(policy="auto", **options))
    assert [out.tokens for out in plain] == [out.tokens for out in first]
    assert [out.tokens for out in plain] == [out.tokens for out in again]
    assert len(list(cache.glob("*.json"))) == 1
    rounds = [int(out[0].policy.state.rounds) for out in (first, again)]
    assert rounds[1] > rounds[0] > 0  # the second call went on from the first


def test_widths_suit_the_device_the_model_and_the_sampling(mini):
    assert automatic.choose_widths(mini, None, greedy=True) == (1, 4, 8)
    assert automatic.choose_widths(mini, None, greedy=False) == (1, 3)
    assert automatic.choose_widths(mini, 6, greedy=False) == (1, 3, 6)
    transposed = mini.replace(target={**mini.target, "panels": {"lm_head": np.zeros((8, 8))}})
    assert automatic.choose_widths(transposed, None, greedy=False) == (1, 4)
    assert automatic.choose_widths(mini, 6, greedy=True) == (1, 4, 6)
    large = jaxspec.Params({"params": jax.ShapeDtypeStruct((2**25,), "float32")}, {}, mini.spec)
    assert automatic.choose_widths(large, None, greedy=True) == (1, 4)


@pytest.mark.parametrize(("widths", "compiled"), [((1, 8, 16), (8, 16)), ((1,), (1,))])
def test_a_single_row_after_drafting_is_left_out(widths, compiled):
    policy = automatic.make_automatic(make_costs(widths, (1,), 0.0, [[1.0]] * len(widths)))
    assert policy.config.widths == compiled and policy.controls.costs.widths == widths


@pytest.mark.slow
def test_the_text_is_the_targets_own_without_a_single_row(mini, monkeypatch):
    monkeypatch.setattr(automatic, "choose_widths", lambda params, budget, greedy: (1, 4, 8))
    session = prepare_tuned(mini, PROMPTS[0], policy="auto")
    assert make_plan(mini.spec, session.config).widths == (4, 8)
    plain = jaxspec.decode(mini, PROMPTS[0], drafter="ar", max_new_tokens=40)
    out = jaxspec.decode(
        mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=40
    )
    assert out.tokens == plain.tokens and out.stats.drafted > 0


def test_costs_are_probed_once_and_kept(mini, cache, begin_anew, monkeypatch):
    """A second process, for which nothing is learned, reads what the first one measured."""
    out = jaxspec.decode(
        mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=8
    )
    costs = out.policy.controls.costs
    assert costs.widths == automatic.choose_widths(mini, None, True)
    assert np.all(np.asarray(costs.verify) > 0)
    begin_anew()
    monkeypatch.setattr(probe, "_time_kinds", lambda *arguments: pytest.fail("measured again"))
    out = jaxspec.decode(
        mini, PROMPTS[1], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=8
    )
    assert int(out.policy.state.rounds) == out.stats.rounds
    assert len(list(cache.glob("*.json"))) == 1


@pytest.mark.parametrize("fastest", [0, 1, 2])
def test_the_fastest_timing_of_each_kind_counts(mini, monkeypatch, fastest):
    """A first round is a timing too, and what a call takes without a round is none of a round's."""
    timings = {PLAIN: 0.01, 4: 0.03, 8: 0.05}
    seen = dict.fromkeys(timings, 0)

    def time_rounds(session, request, state, kind, count, compiles):
        slow = 1.0 if count == 0 or seen[kind] == fastest else 3.0
        seen[kind] += count > 0
        return state, 0.002 + slow * count * timings[kind], count

    session = prepare_tuned(mini, PROMPTS[0], policy="auto", max_new_tokens=8)  # of its capacity
    state = start_session(session).state
    monkeypatch.setattr(probe, "time_rounds", time_rounds)
    found = probe._time_kinds(session, state, tuple(timings), UNTUNED.timing_compilation)
    np.testing.assert_allclose(found, list(timings.values()), rtol=1e-6)
    assert set(seen.values()) == {1 + probe.PROBES}


def test_costs_are_those_of_one_processor(monkeypatch):
    names = []
    for processor in ("one, 2 cores", "one, 4 cores", "one, 2 cores"):
        monkeypatch.setattr(store, "describe_processor", lambda processor=processor: processor)
        names.append(store.Store().find("dflash", "a model"))
    assert names[0] == names[2] != names[1]


@pytest.mark.parametrize("factor", [1.02, 2.0])
def test_corrected_costs_are_kept(mini, cache, begin_anew, factor):
    """Another process goes on with them, unless they hardly changed."""
    out = jaxspec.decode(
        mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=8
    )
    session = prepare_tuned(mini, PROMPTS[0], policy="auto")
    (path,) = cache.glob("*.json")
    first = automatic.load_costs(path).by_rows()
    scale = np.full(len(first.rounds()), factor)
    scale[0] = 1  # plain rounds
    costs = first.with_rounds(first.rounds() * scale[:, None])
    changed = out.policy.replace(controls=out.policy.controls.replace(costs=costs))
    process_tuner()._policies.remember(path, session.params, session.config.drafter, changed)
    begin_anew()
    expected = costs if factor == 2 else first
    kept = prepare_tuned(mini, PROMPTS[0], policy="auto").policy.controls.costs
    np.testing.assert_allclose(kept.rounds(), expected.rounds(), rtol=1e-5)


def test_a_call_looks_once_for_the_file_of_its_costs(mini, cache, monkeypatch):
    found, describe = [], automatic.describe_model

    def count(*given):
        found.append(given)
        return describe(*given)

    options = dict(speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=8)
    jaxspec.decode(mini, PROMPTS[0], **options)
    monkeypatch.setattr(automatic, "describe_model", count)
    jaxspec.decode(mini, PROMPTS[0], **options)
    assert len(found) == 1


def test_a_damaged_file_is_measured_again(mini, cache, begin_anew):
    jaxspec.decode(
        mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=8
    )
    (path,) = cache.glob("*.json")
    path.write_text("{")
    begin_anew()
    jaxspec.decode(
        mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=8
    )
    assert path.read_text().startswith("{\n")


def test_other_weights_do_not_inherit_what_was_learned(mini):
    out = jaxspec.decode(
        mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=24
    )
    other = mini.replace(drafters=jax.tree.map(lambda leaf: leaf * 0.5, mini.drafters))
    fresh = jaxspec.decode(
        other, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=24
    )
    assert fresh.tokens == out.tokens
    assert int(fresh.policy.state.rounds) == fresh.stats.rounds


def test_a_budget_bounds_the_rows(mini):
    session = prepare_tuned(mini, PROMPTS[0], policy="auto", budget=6, max_new_tokens=24)
    widths = (4, 6)
    assert session.policy.config.widths == make_plan(mini.spec, session.config).widths == widths


@pytest.mark.slow
def test_no_round_has_more_rows_than_the_budget(mini):
    out = jaxspec.decode(
        mini,
        PROMPTS[0],
        speculation=jaxspec.Speculation(policy="auto"),
        budget=6,
        max_new_tokens=24,
    )
    assert out.per_round.rows.max() <= 6


def test_it_is_the_default(mini):
    """A budget, a builder or a policy fixes how rounds draft."""
    assert prepare_tuned(mini, PROMPTS[0]).automatic
    assert prepare_tuned(mini, PROMPTS[0], temperature=1.0, block_size=4).automatic
    for fixed in ({"budget": 8}, {"builder": "chain"}, {"policy": make_static(None, 4, (32,))}):
        session = prepare_tuned(mini, PROMPTS[0], **fixed)
        assert not session.automatic and (session.policy is None) == ("policy" not in fixed)


def test_calls_that_leave_nothing_to_decide(mini):
    for options in (
        {"drafter": "ar"},
        {"acceptance": "rejection", "temperature": 1.0, "builder": "chain"},
    ):
        session = prepare_tuned(mini, PROMPTS[0], policy="auto", max_new_tokens=8, **options)
        assert session.policy is None


def test_it_streams(mini):
    text = "".join(
        jaxspec.stream(
            mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="auto"), max_new_tokens=24
        )
    )
    assert text == jaxspec.decode(mini, PROMPTS[0], drafter="ar", max_new_tokens=24).text


def test_other_names_are_refused(mini):
    with pytest.raises(ValueError, match="policy is 'best': give 'auto'"):
        jaxspec.decode(mini, PROMPTS[0], speculation=jaxspec.Speculation(policy="best"))
    with pytest.raises(TypeError, match="policy is of type int"):
        jaxspec.decode(mini, PROMPTS[0], speculation=jaxspec.Speculation(policy=3))
